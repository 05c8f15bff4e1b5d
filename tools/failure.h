#pragma once
// How a failure leaves the process: its exit status and its lines on stderr.
#include <tessera/base/error.h>

#include <string>

#include "tools/args/args.h"

namespace tessera::tools {

enum ExitStatus : int {
  kExitDone = 0,
  kExitNegative = 1,  // a check ran and is negative
  kExitUsage = 2,
  kExitPath = 3,
  kExitCorrupt = 4,
  kExitUnsupported = 5,
  kExitResources = 6,
  kExitInternal = 70,
  kExitSignal = 128,  // + signal
};

int exit_status(Code code);
/// "invalid_argument", "not_found", ...: the `code` of the error document.
std::string code_id(Code code);

/// Whether the message of a refusal is about harm that opening the file elsewhere would do, not about damage.
bool says_unsafe(std::string_view message);

/// Human: "ckpt-reshard: corrupt: ..." and, where there is one, "hint: ...". JSON: one document,
/// the last line.
std::string failure_text(const std::string& command, const Status& status, int exit,
                         OutputFormat format);

/// The end of an exception that nothing can catch: before main(), in a thread's start, while
/// another is on its way. Lack of memory or threads is said in one line, exit 6; all else aborts as
/// it would.
[[noreturn]] void die_of_exception();
/// Makes die_of_exception() the handler of this process. Called by a program of ours before its first
/// static object is made, as those of CLI11 allocate; never in another program that loads the library.
void install_last_word();

/// What a shell reads back as `word`.
std::string shell_quoted(const std::string& word);

}  // namespace tessera::tools

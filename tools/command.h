#pragma once
// What the three commands share: parse, run, print, exit.
//
// stdout gets the result and nothing else, after the work succeeded; stderr gets
// progress, choices and failures. Every exception ends here as an exit status.
#include <tessera/base/progress.h>
#include <tessera/ops/open.h>
#include <tessera/reshard/tensor_reader.h>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "tools/args/args.h"
#include "tools/render/screen.h"
#include "tools/sink.h"

namespace tessera {
class RankGroup;
}

namespace tessera::tools {

/// What a verb hands back: the bytes for stdout, the exit status, and (for a status other than 0
/// that comes with a result) what to say on stderr.
struct Outcome {
  std::string out;
  int exit = 0;
  std::string err;
  /// Set: writes the rest of stdout. Everything that can be refused has been looked at.
  std::function<void(const Sink& sink)> rest = {};
};

/// Another program that runs a command inside itself: it reads the progress and may stop the work.
/// The command then prints nothing and leaves signals alone.
struct Host {
  Progress progress;
  CancelToken cancel;
};

Outcome run_inspect(const Arguments& arguments, FileSystem& fs, const Screen& screen,
                    Host* host = nullptr);
/// `typed`: the whole command line, for the line that resumes it. `ranks`: the processes that do it
/// together; nullptr: this one alone.
Outcome run_convert(const Arguments& arguments, FileSystem& fs, const Screen& screen,
                    const std::vector<std::string>& typed, RankGroup* ranks, Host* host = nullptr);

/// Options that several verbs derive from the same flags.
ReadOptions read_options(const Arguments& arguments);
TransferOptions transfer_options(const Arguments& arguments, Progress* progress);
Selection selection(const Arguments& arguments, const std::string& root);
std::uint64_t memory_limit(const Arguments& arguments);

/// The body of main(): `typed` is the whole command line, of which the first `called_by` words name
/// the command ("ckpt-inspect", or "tessera inspect"). Returns the exit status.
int run_tool(Tool tool, const std::vector<std::string>& typed, std::size_t called_by);

}  // namespace tessera::tools

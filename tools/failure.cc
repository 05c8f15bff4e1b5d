#include "tools/failure.h"

#include <errno.h>
#include <sys/uio.h>
#include <tessera/base/text.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <exception>
#include <iterator>
#include <new>
#include <system_error>

#include "tools/documents/json_report.h"
#include "tools/signals.h"

namespace tessera::tools {
namespace {

constinit std::terminate_handler g_handler_before = nullptr;

/// By plain calls: there may be no byte left.
[[noreturn]] void say_and_exit(const char* what) {
  const char* const name = ::program_invocation_short_name;
  const iovec parts[] = {{const_cast<char*>(name), std::strlen(name)},
                         {const_cast<char*>(": resource exhausted: "), 22},
                         {const_cast<char*>(what), std::strlen(what)},
                         {const_cast<char*>("\n"), 1}};
  if (::writev(STDERR_FILENO, parts, std::size(parts)) < 0) {
    // Then the exit status says it alone.
  }
  ::_exit(kExitResources);
}

/// True where not even an exception could be made.
bool memory_is_gone() {
  void* volatile bytes = std::malloc(1024);  // more than an exception takes
  std::free(bytes);
  return bytes == nullptr;
}

}  // namespace

void install_last_word() { g_handler_before = std::set_terminate(die_of_exception); }

void die_of_exception() {
  try {
    if (std::current_exception()) throw;
    if (memory_is_gone()) say_and_exit("out of memory");
  } catch (const std::bad_alloc&) {
    say_and_exit("out of memory");
  } catch (const std::system_error& error) {
    if (error.code() == std::errc::resource_unavailable_try_again)
      say_and_exit("no thread could be started");
  } catch (...) {
  }
  if (g_handler_before != nullptr) g_handler_before();  // says what it was
  std::abort();
}

int exit_status(Code code) {
  switch (code) {
    case Code::kOk:
      return kExitDone;
    case Code::kInvalidArgument:
    case Code::kAlreadyExists:
    case Code::kOutOfRange:
      return kExitUsage;
    case Code::kNotFound:
    case Code::kIo:
    case Code::kTimeout:
      return kExitPath;
    case Code::kCorrupt:
      return kExitCorrupt;
    case Code::kUnsupported:
      return kExitUnsupported;
    case Code::kResourceExhausted:
      return kExitResources;
    case Code::kCancelled:
      return kExitSignal + (caught_signal() ? caught_signal() : 2);
    case Code::kInternal:
      return kExitInternal;
  }
  return kExitInternal;
}

std::string code_id(Code code) {
  switch (code) {
    case Code::kOk:
      return "ok";
    case Code::kInvalidArgument:
      return "invalid_argument";
    case Code::kNotFound:
      return "not_found";
    case Code::kAlreadyExists:
      return "already_exists";
    case Code::kCorrupt:
      return "corrupt";
    case Code::kUnsupported:
      return "unsupported";
    case Code::kOutOfRange:
      return "out_of_range";
    case Code::kIo:
      return "io";
    case Code::kResourceExhausted:
      return "resource_exhausted";
    case Code::kTimeout:
      return "timeout";
    case Code::kCancelled:
      return "cancelled";
    case Code::kInternal:
      return "internal";
  }
  return "internal";
}

bool says_unsafe(std::string_view message) {
  return message.starts_with("unsafe: ") || message.find("refused as unsafe") != message.npos;
}

std::string failure_text(const std::string& command, const Status& status, int exit,
                         OutputFormat format) {
  if (format == OutputFormat::kHuman) {
    std::string words = printable(status.to_string());
    // Malicious files are whole: what exits alike is not called alike.
    constexpr std::string_view kCorrupt = "corrupt: ";
    if (words.starts_with(kCorrupt) && says_unsafe(status.message))
      words.replace(0, kCorrupt.size(), status.message.starts_with("unsafe: ") ? "" : "unsafe: ");
    std::string text = command + ": " + words + "\n";
    if (!status.hint.empty()) text += "hint: " + printable(status.hint) + "\n";
    return text;
  }
  const auto or_null = [](const std::string& text) {
    return text.empty() ? Value() : json_text(text);
  };
  JsonObject error;
  error.add("schema", "tessera.error/1");
  error.add("code", code_id(status.code));
  error.add("exit", exit);
  error.add("message", printable(status.message));
  error.add("file", or_null(status.context.file));
  error.add("tensor", or_null(status.context.tensor));
  error.add("rank", status.context.rank < 0 ? Value() : Value::integer(status.context.rank));
  error.add("hint", or_null(status.hint));
  return dump_json(error.take()) + "\n";
}

std::string shell_quoted(const std::string& word) {
  constexpr std::string_view kSafe =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@%+=:,./_-";
  if (!word.empty() && word.find_first_not_of(kSafe) == std::string::npos) return word;
  std::string result = "'";
  for (const char c : word) {
    if (c == '\'')
      result += "'\\''";
    else
      result += c;
  }
  return result + "'";
}

}  // namespace tessera::tools

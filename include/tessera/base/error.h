#pragma once
// One failure, in two forms.
//
//   Status  the value: a code, a message and where it happened (file, tensor, rank, operation).
//           It is the type that crosses threads, ranks and the process exit.
//   Error   the thrown form; holds a Status. Everything else in the library throws it.
//
// A message says what, where and what to do:
//   corrupt: tensor "layers.0.w": data_offsets [0,64) disagree with shape [4,5] float32 (80 bytes)
//     [model-00001.safetensors]
// Expected outcomes (not found while probing, findings of verify) are values, never exceptions.
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace tessera {

enum class Code : std::uint8_t {
  kOk,
  kInvalidArgument,  // the caller asked for something meaningless (exit 2)
  kNotFound,         // the path the user named is absent (exit 3)
  kAlreadyExists,    // the output exists and --force was not given (exit 2)
  kCorrupt,          // bytes contradict the format, a part is missing, or unsafe content (exit 4)
  kUnsupported,      // well formed, but not something this build handles; ambiguous format (exit 5)
  kOutOfRange,       // an index or a slice past its end (exit 2)
  kIo,               // an error of the operating system (exit 3)
  kResourceExhausted,  // memory or disk: before work or during it (exit 6)
  kTimeout,
  kCancelled,
  kInternal,  // a bug of ours (exit 70)
};

/// "corrupt", "invalid argument", ...: the word a message starts with.
std::string_view code_name(Code code);

/// Where it happened. Empty fields are unknown. Context is added in four places only.
struct ErrorContext {
  std::string file;
  std::string tensor;
  std::string operation;
  int rank = -1;
};

struct [[nodiscard]] Status {
  Code code = Code::kOk;
  std::string message;
  ErrorContext context;
  std::string hint;  // what the user can do next; may be empty

  bool ok() const { return code == Code::kOk; }
  /// "<code>: tensor "<t>": <message> [<file>, rank <r>, <operation>]" on one line.
  std::string to_string() const;
};

class Error : public std::runtime_error {
 public:
  explicit Error(Status status);
  const Status& status() const { return status_; }
  Code code() const { return status_.code; }

 private:
  Status status_;
};

[[noreturn]] void fail(Code code, std::string message, std::string hint = {});

/// Turns the exception in flight into a Status. std::bad_alloc and failure to start a thread become
/// kResourceExhausted, other std::system_errors kIo, and any unknown exception kInternal.
Status current_exception_status();

/// Runs `f`; an Error that leaves it without a file (tensor, operation) gets this one.
template <class F>
decltype(auto) in_file(std::string_view file, F&& f);
template <class F>
decltype(auto) in_tensor(std::string_view tensor, F&& f);
template <class F>
decltype(auto) in_operation(std::string_view operation, F&& f);

namespace detail {
[[noreturn]] void rethrow_with(const Error& error, std::string ErrorContext::*field,
                               std::string_view value);
[[noreturn]] void check_failed(const char* condition, const char* file, int line);
}  // namespace detail

// Without its folders: what is built does not depend on where its sources lay.
#ifdef __FILE_NAME__
#define TESSERA_FILE_NAME __FILE_NAME__
#else
#define TESSERA_FILE_NAME __FILE__
#endif

/// An invariant of ours. Always on; never reachable from input. Throws kInternal.
#define TESSERA_CHECK(condition)                                                \
  do {                                                                          \
    if (!(condition)) [[unlikely]]                                              \
      ::tessera::detail::check_failed(#condition, TESSERA_FILE_NAME, __LINE__); \
  } while (false)

template <class F>
decltype(auto) in_file(std::string_view file, F&& f) {
  try {
    return f();
  } catch (const Error& error) {
    detail::rethrow_with(error, &ErrorContext::file, file);
  }
}
template <class F>
decltype(auto) in_tensor(std::string_view tensor, F&& f) {
  try {
    return f();
  } catch (const Error& error) {
    detail::rethrow_with(error, &ErrorContext::tensor, tensor);
  }
}
template <class F>
decltype(auto) in_operation(std::string_view operation, F&& f) {
  try {
    return f();
  } catch (const Error& error) {
    detail::rethrow_with(error, &ErrorContext::operation, operation);
  }
}

}  // namespace tessera

#pragma once
// What every function of the C interface shares: failures as values, requests as JSON, and calls that a
// program watches.
#include <tessera/base/progress.h>
#include <tessera/c.h>
#include <tessera/state/value.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::capi {

tessera_error error_of(const Status& status);
inline tessera_error done() {
  return {TESSERA_OK, -1, nullptr, nullptr, nullptr, nullptr, nullptr};
}

/// `text` for the caller, who frees it with tessera_free(). Throws std::bad_alloc.
char* text_for_caller(std::string_view text);

/// What `f` throws, as a value: no exception crosses the interface.
template <class F>
tessera_error guarded(F&& f) noexcept {
  try {
    f();
    return done();
  } catch (...) {
    return error_of(current_exception_status());
  }
}

/// Throws kInvalidArgument "`what` is NULL".
void require(const void* pointer, const char* what);

/// Runs `work` on a thread of its own while the calling thread reports its progress to `watch`; on the calling
/// thread where nobody watches. Throws what `work` throws; kCancelled where `watch` stopped it.
void run_watched(const tessera_watch* watch, Progress& progress, CancelToken& cancel,
                 const std::function<void()>& work);

/// A request: the fields of a JSON object, each taken once. Throws kInvalidArgument for another type, and in
/// finish() for fields that nobody took.
class Request {
 public:
  /// nullptr: an object without fields.
  Request(const char* json, const char* what);
  std::string text(std::string_view field);
  std::vector<std::string> texts(std::string_view field);
  bool flag(std::string_view field, bool otherwise);
  std::optional<std::int64_t> number(std::string_view field);
  /// As number(), at least 0.
  std::uint64_t size(std::string_view field, std::uint64_t otherwise);
  void finish() const;

 private:
  std::optional<Value> take(std::string_view field);
  [[noreturn]] void fail_type(std::string_view field, const char* wanted) const;

  std::string what_;
  ValueDict fields_;
};

/// Untrusted text of a caller as JSON. `depth`: of its nesting.
Value parse_request(const char* json, const char* what, int depth);

}  // namespace tessera::capi

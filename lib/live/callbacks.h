#pragma once
// What a job's own callback throws is the job's, not a bug of ours: it comes back with its own
// words and with the callback's name. Errors of ours pass as they are.
#include <tessera/state/live_state.h>

#include <exception>
#include <string_view>
#include <utility>

namespace tessera {

/// In a catch block: throws what is in flight if it is an Error, else an Error that says what
/// `callback` threw (no memory and failures of the system keep their codes).
[[noreturn]] void rethrow_as_of(std::string_view callback);

/// Calls `f`, which is the job's `callback`.
template <class F>
decltype(auto) in_callback(std::string_view callback, F&& f) {
  try {
    return std::forward<F>(f)();
  } catch (...) {
    rethrow_as_of(callback);
  }
}

/// Makes the callbacks of a state name themselves, and remembers what one has thrown.
class NamedCallbacks {
 public:
  /// Outlives every call of them.
  explicit NamedCallbacks(LiveState& state);
  NamedCallbacks(const NamedCallbacks&) = delete;
  NamedCallbacks& operator=(const NamedCallbacks&) = delete;

  /// Throws `error`; where a callback of this rank threw what is no Error, it is a CallbackError
  /// that holds that.
  [[noreturn]] void rethrow(const Error& error) const;

 private:
  template <class... Arguments>
  void wrap(std::string_view name, std::function<void(Arguments...)>& callback);

  std::exception_ptr thrown_;
};

}  // namespace tessera

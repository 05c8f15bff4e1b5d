#pragma once
// What a job's own callback throws is the job's, not a bug of ours: it comes back with its own
// words and with the callback's name. Errors of ours pass as they are.
#include <tessera/base/error.h>
#include <tessera/state/live_state.h>

#include <exception>
#include <string_view>
#include <utility>

namespace tessera {

/// In a catch block of what is no Error: throws an Error that says what `callback` threw (no memory
/// and failures of the system keep their codes).
[[noreturn]] void rethrow_as_of(std::string_view callback);

/// Calls `f`, which is the job's `callback`. `thrown`: what it threw, unless that was an Error.
template <class F>
decltype(auto) in_callback(std::string_view callback, std::exception_ptr& thrown, F&& f) {
  try {
    return std::forward<F>(f)();
  } catch (const Error&) {
    throw;
  } catch (...) {
    thrown = std::current_exception();
    rethrow_as_of(callback);
  }
}

/// Throws `error`; where a callback of this rank threw what is no Error, it is a CallbackError that
/// holds that.
[[noreturn]] void rethrow_with(const std::exception_ptr& thrown, const Error& error);

/// Makes the callbacks of a state name themselves, and remembers what one has thrown.
class NamedCallbacks {
 public:
  /// Outlives every call of them.
  explicit NamedCallbacks(LiveState& state);
  NamedCallbacks(const NamedCallbacks&) = delete;
  NamedCallbacks& operator=(const NamedCallbacks&) = delete;

  [[noreturn]] void rethrow(const Error& error) const { rethrow_with(thrown_, error); }

 private:
  template <class... Arguments>
  void wrap(std::string_view name, std::function<void(Arguments...)>& callback);

  std::exception_ptr thrown_;
};

}  // namespace tessera

#include "lib/live/callbacks.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

namespace tessera {

void rethrow_as_of(std::string_view callback) {
  Status status = current_exception_status();
  if (status.code == Code::kInternal) status.code = Code::kInvalidArgument;
  status.message = fmt::format("the callback {} threw: {}", callback, printable(status.message));
  status.hint = "the exception is the job's own";
  throw Error(std::move(status));
}

void rethrow_with(const std::exception_ptr& thrown, const Error& error) {
  if (!thrown) throw error;
  try {
    std::rethrow_exception(thrown);
  } catch (...) {
    throw CallbackError(error.status());
  }
}

template <class... Arguments>
void NamedCallbacks::wrap(std::string_view name, std::function<void(Arguments...)>& callback) {
  if (!callback) return;
  callback = [this, name, own = std::move(callback)](Arguments... arguments) {
    in_callback(name, thrown_, [&] { own(std::forward<Arguments>(arguments)...); });
  };
}

NamedCallbacks::NamedCallbacks(LiveState& state) {
  wrap("LiveState::materialise", state.materialise);
  wrap("LiveState::check_value", state.check_value);
  wrap("LiveState::check_loaded", state.check_loaded);
  wrap("LiveState::on_value", state.on_value);
  wrap("LiveState::after_load", state.after_load);
}

}  // namespace tessera

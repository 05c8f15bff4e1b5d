#include "lib/live/callbacks.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

namespace tessera {

void rethrow_as_of(std::string_view callback) {
  try {
    throw;
  } catch (const Error&) {
    throw;
  } catch (...) {
    Status status = current_exception_status();
    if (status.code == Code::kInternal) status.code = Code::kInvalidArgument;
    status.message = fmt::format("the callback {} threw: {}", callback, printable(status.message));
    status.hint = "the exception is the job's own";
    throw Error(std::move(status));
  }
}

template <class... Arguments>
void NamedCallbacks::wrap(std::string_view name, std::function<void(Arguments...)>& callback) {
  if (!callback) return;
  callback = [this, name, own = std::move(callback)](Arguments... arguments) {
    try {
      own(std::forward<Arguments>(arguments)...);
    } catch (const Error&) {
      throw;
    } catch (...) {
      thrown_ = std::current_exception();
      rethrow_as_of(name);
    }
  };
}

NamedCallbacks::NamedCallbacks(LiveState& state) {
  wrap("LiveState::materialise", state.materialise);
  wrap("LiveState::check_value", state.check_value);
  wrap("LiveState::check_loaded", state.check_loaded);
  wrap("LiveState::on_value", state.on_value);
  wrap("LiveState::after_load", state.after_load);
}

void NamedCallbacks::rethrow(const Error& error) const {
  if (!thrown_) throw error;
  try {
    std::rethrow_exception(thrown_);
  } catch (...) {
    throw CallbackError(error.status());
  }
}

}  // namespace tessera

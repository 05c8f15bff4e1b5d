#pragma once
// A deadline for calls that cannot be interrupted, such as one on a store whose rank hangs.
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

namespace tessera::fsdp {

/// Runs f() on a thread of its own. Where nobody waits for the answer any more, the thread is left
/// behind with what `f` holds.
template <class T>
std::future<T> started(std::function<T()> f) {
  auto answer = std::make_shared<std::promise<T>>();
  std::future<T> future = answer->get_future();
  std::thread([answer, f = std::move(f)] {
    try {
      answer->set_value(f());
    } catch (...) {
      answer->set_exception(std::current_exception());
    }
  }).detach();
  return future;
}

/// f(), or nothing if there is no answer in time. Throws what `f` throws.
template <class T>
std::optional<T> answered_within(std::chrono::milliseconds patience, std::function<T()> f) {
  std::future<T> future = started<T>(std::move(f));
  if (future.wait_for(patience) != std::future_status::ready) return std::nullopt;
  return future.get();
}

}  // namespace tessera::fsdp

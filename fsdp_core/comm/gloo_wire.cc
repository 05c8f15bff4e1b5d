#include "fsdp_core/comm/gloo_wire.h"

#include <ATen/ops/from_blob.h>

#include <utility>

#include "fsdp_core/comm/no_sigpipe.h"

namespace tessera::fsdp {

void GlooWire::throw_if_cut_locked() const {
  if (why_) throw Error(*why_);
  if (!backend_) fail(Code::kIo, "the connections of this group are closed");
}

void GlooWire::begin() {
  const std::lock_guard lock(mutex_);
  throw_if_cut_locked();
  busy_ = true;
}

void GlooWire::end() noexcept {
  {
    const std::lock_guard lock(mutex_);
    busy_ = false;
    if (!why_) return;
  }
  close();
}

void GlooWire::post(int batch, bool sending, void* data, std::size_t bytes, int member,
                    std::int32_t tag) {
  if (bytes == 0) return;
  const std::lock_guard lock(mutex_);
  throw_if_cut_locked();
  one_[0] = at::from_blob(data, {static_cast<std::int64_t>(bytes)}, at::TensorOptions(at::kByte));
  flight_[batch].push_back(sending ? backend_->send(one_, member, tag)
                                   : backend_->recv(one_, member, tag));
}

void GlooWire::receive(int batch, void* to, std::size_t bytes, int from_member, std::int32_t tag) {
  post(batch, false, to, bytes, from_member, tag);
}

void GlooWire::send(int batch, const void* from, std::size_t bytes, int to_member,
                    std::int32_t tag) {
  post(batch, true, const_cast<void*>(from), bytes, to_member, tag);
}

void GlooWire::wait(int batch) {
  // Only this thread adds and removes; cut() reads under the lock.
  for (const auto& work : flight_[batch]) {
    if (work->wait(timeout_)) continue;
    const std::lock_guard lock(mutex_);
    throw_if_cut_locked();
    fail(Code::kIo, "a message was abandoned");
  }
  const std::lock_guard lock(mutex_);
  std::swap(landed_, flight_[batch]);
  flight_[batch].clear();
}

void GlooWire::cut(const Status& why) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (why_) return;
    why_ = why;
    for (const auto& works : flight_)
      for (const auto& work : works) work->abort();
    if (busy_) return;
  }
  close();
}

std::optional<Status> GlooWire::why_cut() const {
  const std::lock_guard lock(mutex_);
  return why_;
}

void GlooWire::close() noexcept {
  const NoSigpipe no_sigpipe;
  decltype(backend_) backend;
  std::vector<c10::intrusive_ptr<c10d::Work>> works[3];  // each keeps the connections open
  {
    const std::lock_guard lock(mutex_);
    std::swap(works[0], flight_[0]);
    std::swap(works[1], flight_[1]);
    std::swap(works[2], landed_);
    backend = std::move(backend_);
  }
  // Messages end before the connections: their memory may be gone once the call has thrown.
}

}  // namespace tessera::fsdp

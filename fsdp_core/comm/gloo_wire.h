#pragma once
// GlooWire: messages between the ranks of one group. One thread sends and waits; any thread may
// cut().
#include <tessera/base/error.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

namespace tessera::fsdp {

class GlooWire {
 public:
  /// `timeout`: of wait(). The backend's own cannot be changed once it is connected.
  GlooWire(c10::intrusive_ptr<c10d::Backend> backend, std::chrono::milliseconds timeout)
      : backend_(std::move(backend)), timeout_(timeout) {}

  /// Between begin() and end() a call is in progress. begin() throws why the wire was cut.
  void begin();
  void end() noexcept;

  /// Posts into `batch` (0 or 1). The memory stays valid until wait() of that batch, or close().
  /// Zero bytes are no message.
  void receive(int batch, void* to, std::size_t bytes, int from_member, std::int32_t tag);
  void send(int batch, const void* from, std::size_t bytes, int to_member, std::int32_t tag);
  /// Until all messages of `batch` have arrived and left. Throws what Gloo throws, or why it was
  /// cut.
  void wait(int batch);

  /// Ends the call in progress, and every later one, with `why`; the first reason stays. Closes the
  /// connections, at once where no call is in progress, else as soon as that call has ended.
  void cut(const Status& why) noexcept;
  std::optional<Status> why_cut() const;

  /// Closes the connections: peers that wait fail within milliseconds. Only from the calling
  /// thread.
  void close() noexcept;

 private:
  void post(int batch, bool sending, void* data, std::size_t bytes, int member, std::int32_t tag);
  void throw_if_cut_locked() const;

  mutable std::mutex mutex_;
  c10::intrusive_ptr<c10d::Backend> backend_;
  const std::chrono::milliseconds timeout_;
  std::vector<c10::intrusive_ptr<c10d::Work>> flight_[2];
  // The last batch to be complete. Gloo's own thread may still look at a message when it is
  // complete, and ending the message waits for that thread, which costs milliseconds: it is ended
  // one batch later.
  std::vector<c10::intrusive_ptr<c10d::Work>> landed_;
  std::vector<at::Tensor> one_ = std::vector<at::Tensor>(1);
  std::optional<Status> why_;
  bool busy_ = false;
};

}  // namespace tessera::fsdp

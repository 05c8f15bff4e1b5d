// Streams of a GPU through LibTorch's device-generic interface: no header of its toolkit is needed.
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "fsdp_core/stream/stream.h"

namespace tessera::fsdp {
namespace {

class DeviceEvent final : public Event::Impl {
 public:
  explicit DeviceEvent(c10::DeviceType type) : event_(std::make_shared<c10::Event>(type)) {}
  explicit DeviceEvent(std::shared_ptr<c10::Event> event) : event_(std::move(event)) {}
  void record(const c10::Stream& stream) { event_->record(stream); }
  void synchronize() override { event_->synchronize(); }
  bool ready() const override { return event_->query(); }
  void block(const c10::Stream& stream) { event_->block(stream); }

 private:
  std::shared_ptr<c10::Event> event_;
};

/// Events that nobody holds any more are recorded again: a device makes few of them, and a step
/// none. Who waits for one already waits for what it was then.
class EventPool {
 public:
  explicit EventPool(c10::DeviceType type) : type_(type) {}

  Event record(const c10::Stream& stream) {
    const std::lock_guard lock(mutex_);
    DeviceEvent& event = unused();
    event.record(stream);
    return Event(all_[next_]);
  }

 private:
  /// all_[next_] from then on.
  DeviceEvent& unused() {
    for (std::size_t tried = 0; tried < all_.size(); ++tried) {
      next_ = (next_ + 1) % all_.size();
      if (all_[next_].use_count() != 1) continue;
      std::atomic_thread_fence(std::memory_order_acquire);  // with whoever held it last
      return *all_[next_];
    }
    next_ = all_.size();
    return *all_.emplace_back(std::make_shared<DeviceEvent>(type_));
  }

  const c10::DeviceType type_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<DeviceEvent>> all_;
  std::size_t next_ = 0;
};

class DeviceStream final : public Stream {
 public:
  /// nullopt: whatever stream is current on the device.
  DeviceStream(std::string name, c10::Device device, std::optional<c10::Stream> stream,
               std::shared_ptr<EventPool> events)
      : Stream(std::move(name), /*immediate=*/!stream, /*launches_now=*/stream.has_value()),
        device_(device),
        stream_(stream),
        events_(std::move(events)) {}
  Event record() override { return events_->record(stream()); }
  void wait(const Event& event) override {
    if (!event.impl()) return;
    if (auto* on_device = dynamic_cast<DeviceEvent*>(event.impl().get()))
      on_device->block(stream());
    else
      event.synchronize();
  }

 private:
  c10::Stream stream() const {
    return stream_ ? *stream_ : c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
  }
  void launch(std::function<void()> work, const Communicator* comm) override {
    launch_now(work, comm);
  }
  void launch_now(c10::function_ref<void()> work, const Communicator*) override {
    const c10::StreamGuard guard(*stream_);
    work();
  }

  c10::Device device_;
  std::optional<c10::Stream> stream_;
  std::shared_ptr<EventPool> events_;
};

class DeviceStreams final : public StreamFactory {
 public:
  explicit DeviceStreams(c10::Device device) : device_(device) {}
  std::shared_ptr<Stream> compute() override {
    return std::make_shared<DeviceStream>("compute", device_, std::nullopt, events_);
  }
  std::shared_ptr<Stream> make(std::string name, bool high_priority) override {
    const c10::impl::VirtualGuardImpl guard(device_.type());
    return std::make_shared<DeviceStream>(
        std::move(name), device_, guard.getStreamFromGlobalPool(device_, high_priority), events_);
  }

 private:
  c10::Device device_;
  std::shared_ptr<EventPool> events_ = std::make_shared<EventPool>(device_.type());
};

}  // namespace

std::shared_ptr<StreamFactory> device_streams(c10::Device device) {
  return std::make_shared<DeviceStreams>(device);
}

Event device_event(std::shared_ptr<c10::Event> event) {
  return Event(std::make_shared<DeviceEvent>(std::move(event)));
}

}  // namespace tessera::fsdp

// Streams of a GPU through LibTorch's device-generic interface: no header of its toolkit is needed.
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <optional>

#include "fsdp_core/stream/stream.h"

namespace tessera::fsdp {
namespace {

class DeviceEvent final : public Event::Impl {
 public:
  explicit DeviceEvent(const c10::Stream& stream) : event_(stream.device_type()) {
    event_.record(stream);
  }
  void synchronize() override { event_.synchronize(); }
  bool ready() const override { return event_.query(); }
  void block(const c10::Stream& stream) { event_.block(stream); }

 private:
  c10::Event event_;
};

class DeviceStream final : public Stream {
 public:
  /// nullopt: whatever stream is current on the device.
  DeviceStream(std::string name, c10::Device device, std::optional<c10::Stream> stream)
      : Stream(std::move(name), /*immediate=*/!stream), device_(device), stream_(stream) {}
  Event record() override { return Event(std::make_shared<DeviceEvent>(stream())); }
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
  void launch(std::function<void()> work, const Communicator*) override {
    c10::StreamGuard guard(*stream_);
    work();
  }

  c10::Device device_;
  std::optional<c10::Stream> stream_;
};

class DeviceStreams final : public StreamFactory {
 public:
  explicit DeviceStreams(c10::Device device) : device_(device) {}
  std::shared_ptr<Stream> compute() override {
    return std::make_shared<DeviceStream>("compute", device_, std::nullopt);
  }
  std::shared_ptr<Stream> make(std::string name, bool high_priority) override {
    const c10::impl::VirtualGuardImpl guard(device_.type());
    return std::make_shared<DeviceStream>(std::move(name), device_,
                                          guard.getStreamFromGlobalPool(device_, high_priority));
  }

 private:
  c10::Device device_;
};

}  // namespace

std::shared_ptr<StreamFactory> device_streams(c10::Device device) {
  return std::make_shared<DeviceStreams>(device);
}

}  // namespace tessera::fsdp

#include "tests/gpu_kit/device.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <chrono>
#include <thread>

#ifdef TESSERA_KIT_CUDA
#include <ATen/cuda/Sleep.h>
#endif

namespace tessera::gpu_kit {

namespace {

using Clock = std::chrono::steady_clock;

c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

}  // namespace

void keep_busy(c10::Device device, int microseconds) {
  if (microseconds <= 0) return;
#ifdef TESSERA_KIT_CUDA
  constexpr std::int64_t kCyclesPerMicrosecond = 1700;  // of an H100 at work, about
  if (device.is_cuda()) return at::cuda::sleep(microseconds * kCyclesPerMicrosecond);
#endif
  std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
}

void synchronise_stream(c10::Device device) {
  if (!device.is_cpu()) current_stream(device).synchronize();
}

void synchronise(c10::Device device) {
  if (!device.is_cpu())
    c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
}

DeviceMemory device_memory(c10::Device device) {
  if (device.is_cpu()) return {};
  const auto stats = c10::getDeviceAllocator(device.type())->getDeviceStats(device.index());
  return {stats.allocated_bytes[0].peak, stats.reserved_bytes[0].peak, stats.num_device_alloc};
}

void reset_peak_memory(c10::Device device) {
  if (device.is_cpu()) return;
  c10::DeviceAllocator* allocator = c10::getDeviceAllocator(device.type());
  allocator->emptyCache();
  allocator->resetPeakStats(device.index());
}

struct Stopwatch::Impl {
  explicit Impl(c10::Device its_device) : device(its_device) {}
  c10::Device device;
  std::unique_ptr<c10::Event> events[2];
  Clock::time_point host[2];

  void mark(int which) {
    if (device.is_cpu()) {
      host[which] = Clock::now();
      return;
    }
    // Events without this flag carry no time.
    events[which] = std::make_unique<c10::Event>(device.type(), c10::EventFlag::BACKEND_DEFAULT);
    events[which]->record(current_stream(device));
  }
};

Stopwatch::Stopwatch(c10::Device device) : impl_(std::make_unique<Impl>(device)) {}
Stopwatch::~Stopwatch() = default;
void Stopwatch::start() { impl_->mark(0); }
void Stopwatch::stop() { impl_->mark(1); }

double Stopwatch::milliseconds() {
  if (impl_->device.is_cpu())
    return std::chrono::duration<double, std::milli>(impl_->host[1] - impl_->host[0]).count();
  impl_->events[1]->synchronize();
  return impl_->events[0]->elapsedTime(*impl_->events[1]);
}

}  // namespace tessera::gpu_kit

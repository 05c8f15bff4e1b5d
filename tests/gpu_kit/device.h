#pragma once
// What the parts need of a device, through LibTorch's generic interface. On the CPU, where the same
// parts run small, a stream is the caller itself and no memory is counted.
#include <c10/core/Device.h>

#include <cstdint>
#include <memory>

namespace tessera::gpu_kit {

/// Keeps the current stream of `device` busy for about so long. On the CPU the caller sleeps.
void keep_busy(c10::Device device, int microseconds);
/// The host waits for what the current stream of `device` was given.
void synchronise_stream(c10::Device device);
/// The host waits for everything given to `device`.
void synchronise(c10::Device device);

struct DeviceMemory {
  std::int64_t peak_allocated = 0;  // bytes, since reset_peak_memory()
  std::int64_t peak_reserved = 0;
  std::int64_t device_allocations = 0;  // calls of the device's own allocator, since the start
};
/// Zeros on the CPU. Something was allocated on the device before.
DeviceMemory device_memory(c10::Device device);
/// Gives cached memory back and counts peaks anew.
void reset_peak_memory(c10::Device device);

/// Milliseconds between two points of the current stream's work.
class Stopwatch {
 public:
  explicit Stopwatch(c10::Device device);
  ~Stopwatch();
  void start();
  void stop();
  /// Waits for the second point.
  double milliseconds();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera::gpu_kit

#pragma once
// A simulated accelerator for tests: what a GPU would show, on any machine. LibTorch sees a device
// type of its own, "sim" (PrivateUse1), with eight devices:
//
//   memory    the host cannot touch it: a pointer that is followed on the host is a segmentation
//             fault. A freed block goes back to the stream that it was allocated on and may be given
//             out again at once; its bytes become 0xFF (NaN) in that stream's order.
//   streams   each has a thread: work runs later, in order, after a delay drawn from a seed
//   events    between streams, and for the host
//   kernels   the CPU's own, so that values are equal bit for bit
//   clocks    vector clocks say which accesses are ordered, whatever the timing: a missing wait and
//             memory freed too early are findings even where this run happened to be right
//   counters  what a step does to the host: synchronisations, launches, events, allocations
//
// Limits: clocks know whole blocks, not ranges within them. The host's clock is one per device, so
// that one synchronisation of a rank may hide a race with another thread of the same rank.
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace tessera::sim {

inline constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;
inline constexpr int kDevices = 8;

inline c10::Device device(int index = 0) { return {kType, static_cast<c10::DeviceIndex>(index)}; }
/// The device of the calling thread.
void set_current(int index);

/// Registers the device type with LibTorch. Once in a process, before anything is asked of it.
void install();

/// From now on each stream waits 0 to `most_us` microseconds before each piece of work. 0: never.
void set_lateness(std::uint64_t seed, int most_us);

struct Counts {
  std::int64_t host_syncs = 0;   // calls that make the host wait: for an event, a stream, a value
  std::int64_t launches = 0;     // kernels, copies, collectives
  std::int64_t events = 0;       // made
  std::int64_t waits = 0;        // of a stream for an event
  std::int64_t allocations = 0;  // blocks that were not there to be used again
  std::size_t bytes = 0, peak_bytes = 0;  // given out
};
Counts counts(int device);
/// Zero, but for `bytes`, at which `peak_bytes` begins anew.
void reset_counts(int device);

/// Waits for all work of all devices; then gives, and forgets, what was found since the last call:
/// accesses without an order, memory of another device, kernels that threw.
std::vector<std::string> take_findings();

/// A fault for tests of the tests: the `number`-th wait of a stream for an event from now on, from
/// 1, orders nothing. 0: none. -1: all.
void drop_wait(int number);
/// How many waits were asked for since drop_wait was called.
int waits_asked();

/// The stream that is current on that device for the calling thread.
c10::Stream current_stream(int device);

/// Work of `stream` that reads and writes these tensors of the device. Within it host_view gives
/// their memory.
void launch(const c10::Stream& stream, const std::string& name,
            const std::vector<at::Tensor>& reads, const std::vector<at::Tensor>& writes,
            std::function<void()> work);
/// The memory of a tensor of the device as a tensor of the CPU that owns nothing. To be touched in
/// a stream's work alone.
at::Tensor host_view(const at::Tensor& tensor);

}  // namespace tessera::sim

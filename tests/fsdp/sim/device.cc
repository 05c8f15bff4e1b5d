// The simulated accelerator as LibTorch asks for it: devices, streams, events, memory.
#include "tests/fsdp/sim/device.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <cstdlib>
#include <cstring>

#include "tests/fsdp/sim/machine.h"

namespace tessera::sim {
namespace {

constexpr int kPool = 8;  // streams of a device that can be asked for; then the first again

thread_local int this_device = 0;
thread_local std::array<c10::StreamId, kDevices> this_stream{};

int index_of(c10::Device device) { return device.index() < 0 ? this_device : device.index(); }

c10::Stream stream_of(int device, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, sim::device(device), id);
}

Machine& machine() { return Machine::the(); }

// ---- memory ----

class DeviceMemory final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    return machine().allocate(bytes, this_device, key_of(current_stream(this_device)));
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(machine().alias_of(to), machine().alias_of(from), bytes);
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr& memory, c10::Stream stream) override {
    machine().record_stream(memory.get(), key_of(stream));
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    c10::CachingDeviceAllocator::DeviceStats stats;
    const Counts counts = machine().counts(device);
    stats.allocated_bytes[0].current = static_cast<std::int64_t>(counts.bytes);
    stats.allocated_bytes[0].peak = static_cast<std::int64_t>(counts.peak_bytes);
    stats.num_device_alloc = counts.allocations;
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override { machine().reset_counts(device); }
  void resetPeakStats(c10::DeviceIndex device) override { machine().reset_counts(device); }
};

DeviceMemory& device_memory() {
  static auto* const memory = new DeviceMemory;
  return *memory;
}

/// Host memory that streams copy from and to without making the host wait.
class PinnedMemory final : public c10::Allocator {
 public:
  static PinnedMemory& the() {
    static auto* const memory = new PinnedMemory;
    return *memory;
  }
  c10::DataPtr allocate(std::size_t bytes) override {
    void* const memory = std::aligned_alloc(64, (bytes + 64) / 64 * 64);
    std::memset(memory, 0xFF, bytes);
    const std::lock_guard lock(mutex_);
    sizes_[memory] = bytes;
    return {memory, memory, &release, c10::Device(c10::kCPU)};
  }
  bool holds(const void* pointer) {
    const std::lock_guard lock(mutex_);
    auto found = sizes_.upper_bound(const_cast<void*>(pointer));
    if (found == sizes_.begin()) return false;
    --found;
    return static_cast<const std::byte*>(pointer) <
           static_cast<const std::byte*>(found->first) + std::max<std::size_t>(found->second, 1);
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }

 private:
  static void release(void* memory) {
    if (!memory) return;
    {
      const std::lock_guard lock(the().mutex_);
      the().sizes_.erase(memory);
    }
    std::free(memory);
  }
  std::mutex mutex_;
  std::map<void*, std::size_t> sizes_;
};

// ---- devices, streams, events ----

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }
  c10::Device getDevice() const override { return sim::device(this_device); }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(device.index() < kDevices, "there is no device ", device.str());
    uncheckedSetDevice(device);
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    this_device = index_of(device);
  }

  c10::Stream getStream(c10::Device device) const override {
    return current_stream(index_of(device));
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, sim::device(index_of(device)));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    static std::array<std::atomic<int>, kDevices> next{};
    const int index = index_of(device);
    return stream_of(index, (index + 1) * 1000 + next[static_cast<std::size_t>(index)]++ % kPool);
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    return getStreamFromGlobalPool(device, false);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::Stream before = current_stream(stream.device_index());
    this_stream[static_cast<std::size_t>(stream.device_index())] = stream.id();
    return before;
  }
  bool queryStream(const c10::Stream& stream) const override {
    return machine().queue(key_of(stream)).idle();
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    machine().synchronise_stream(key_of(stream), stream.device_index());
  }
  void synchronizeDevice(c10::DeviceIndex device) const override {
    machine().synchronise_device(device < 0 ? this_device : device);
  }

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex,
              c10::EventFlag) const override {
    if (!*event) machine().count_event(stream.device_index());
    delete static_cast<Point*>(*event);
    *event = new Point(machine().record(key_of(stream), stream.device_index()));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event) machine().block(*static_cast<Point*>(event), key_of(stream), stream.device_index());
  }
  bool queryEvent(void* event) const override {
    const auto* point = static_cast<Point*>(event);
    if (!point) return true;
    if (!*point->passed) return false;
    machine().host_waited(point->clock, this_device, false);
    return true;
  }
  void synchronizeEvent(void* event) const override {
    const auto* point = static_cast<Point*>(event);
    if (!point) return;
    point->passed->wait(false);
    machine().host_waited(point->clock, this_device, true);
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<Point*>(event);
  }
  void recordDataPtrOnStream(const c10::DataPtr& memory, const c10::Stream& stream) const override {
    machine().record_stream(memory.get(), key_of(stream));
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  /// Else the engine does not keep the streams of whoever calls backward.
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  c10::DeviceIndex getCurrentDevice() const override {
    return static_cast<c10::DeviceIndex>(this_device);
  }
  void setCurrentDevice(c10::DeviceIndex device) const override {
    if (device >= 0) this_device = device;
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    const c10::DeviceIndex before = getCurrentDevice();
    setCurrentDevice(device);
    return before;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return exchangeDevice(device);
  }
  bool isPinnedPtr(const void* memory) const override { return PinnedMemory::the().holds(memory); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &PinnedMemory::the(); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    static auto* const all = [] {
      auto* made = new std::array<at::Generator, kDevices>;
      for (at::Generator& each : *made) each = at::make_generator<at::CPUGeneratorImpl>(1);
      return made;
    }();
    return (*all)[static_cast<std::size_t>(device < 0 ? this_device : device)];
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, std::size_t bytes) const override {
    const int device = storage.device().index();
    const c10::Stream stream = current_stream(device);
    c10::DataPtr memory = machine().allocate(bytes, device, key_of(stream));
    machine().synchronise_stream(key_of(stream), device);
    const std::size_t kept = std::min(bytes, storage.nbytes());
    if (kept > 0)
      std::memcpy(machine().alias_of(memory.get()), machine().alias_of(storage.data()), kept);
    storage.set_data_ptr_noswap(std::move(memory));
    storage.set_nbytes(bytes);
  }
};

}  // namespace

int current_device() { return this_device; }
void set_current(int index) { this_device = index; }
c10::Stream current_stream(int device) {
  return stream_of(device, this_stream[static_cast<std::size_t>(device)]);
}

void install() {
  static const bool installed = [] {
    c10::register_privateuse1_backend("sim");
    c10::SetAllocator(kType, &device_memory(), 255);
    at::RegisterPrivateUse1HooksInterface(new Hooks);
    register_operators();
    return true;
  }();
  (void)installed;
}

c10::Allocator* allocator() { return &device_memory(); }

void launch(const c10::Stream& stream, const std::string& name,
            const std::vector<at::Tensor>& reads, const std::vector<at::Tensor>& writes,
            std::function<void()> work) {
  const int device = stream.device_index();
  const auto memory_of = [&](const std::vector<at::Tensor>& tensors) {
    std::vector<const void*> out;
    for (const at::Tensor& tensor : tensors) {
      if (tensor.numel() == 0) continue;
      out.push_back(tensor.const_data_ptr());
      const int owner = machine().device_of(out.back());
      if (owner != tensor.device().index())
        machine().find(name + ": a tensor of " + tensor.device().str() + " lies in the memory of " +
                       (owner < 0 ? "the host" : sim::device(owner).str()));
    }
    return out;
  };
  machine().launch(key_of(stream), device, name, memory_of(reads), memory_of(writes),
                   std::move(work));
}

at::Tensor host_view(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  static std::byte nothing[64];
  void* const memory =
      tensor.numel() == 0 ? nothing : machine().alias_of(tensor.mutable_data_ptr());
  return at::from_blob(
      memory, tensor.sizes(), tensor.strides(), [](void*) {},
      tensor.options().device(at::kCPU).requires_grad(false), c10::Device(at::kCPU));
}

void set_lateness(std::uint64_t seed, int most_us) { machine().seed(seed, most_us); }
Counts counts(int device) { return machine().counts(device); }
void reset_counts(int device) { machine().reset_counts(device); }
std::vector<std::string> take_findings() { return machine().take_findings(); }
void drop_wait(int number) { machine().drop_wait(number); }
int waits_asked() { return machine().waits_asked(); }

}  // namespace tessera::sim

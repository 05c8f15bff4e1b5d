#include "tests/fsdp/sim/machine.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <thread>

namespace tessera::sim {
namespace {

constexpr std::size_t kArenaBytes = std::size_t{1} << 30;  // of addresses, not of memory
constexpr std::size_t kGrain = 512;

void map_memory(Arena& arena) {
  const int file = ::memfd_create("simulated device", 0);
  if (file < 0 || ::ftruncate(file, static_cast<off_t>(kArenaBytes)) != 0)
    throw std::runtime_error("no memory for a simulated device");
  void* const base =
      ::mmap(nullptr, kArenaBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  void* const alias = ::mmap(nullptr, kArenaBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  ::close(file);
  if (base == MAP_FAILED || alias == MAP_FAILED)
    throw std::runtime_error("no addresses for a simulated device");
  arena.base = static_cast<std::byte*>(base);
  arena.alias = static_cast<std::byte*>(alias);
}

std::string stream_name(int key) {
  return key < kDevices ? "the default stream of sim:" + std::to_string(key)
                        : "stream " + std::to_string(key);
}

void free_block(void* context) { Machine::the().free(static_cast<Block*>(context)); }
void free_nothing(void*) {}

}  // namespace

void join(Clock& into, const Clock& other) {
  for (const auto& [stream, tick] : other) into[stream] = std::max(into[stream], tick);
}

int key_of(const c10::Stream& stream) {
  return stream.id() != 0 ? static_cast<int>(stream.id()) : static_cast<int>(stream.device_index());
}

// ---- queues ----

void Queue::push(std::function<void()> work, bool late) {
  const std::lock_guard lock(mutex_);
  if (!started_) std::thread([this] { loop(); }).detach();
  started_ = true;
  work_.emplace_back(std::move(work), late);
  changed_.notify_all();
}

void Queue::drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return work_.empty() && !busy_; });
}

bool Queue::idle() {
  const std::lock_guard lock(mutex_);
  return work_.empty() && !busy_;
}

void Queue::seed(std::uint64_t seed, int most_us) {
  const std::lock_guard lock(mutex_);
  random_.seed(seed + static_cast<std::uint64_t>(key_));
  most_us_ = most_us;
}

void Queue::loop() {
  at::set_num_threads(1);
  const at::NoGradGuard no_grad;
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return !work_.empty(); });
    auto [work, late] = std::move(work_.front());
    work_.pop_front();
    busy_ = true;
    const auto delay = late && most_us_ > 0 ? random_() % static_cast<unsigned>(most_us_) : 0;
    lock.unlock();
    if (delay > 0) std::this_thread::sleep_for(std::chrono::microseconds(delay));
    work();
    work = nullptr;
    lock.lock();
    busy_ = false;
    changed_.notify_all();
  }
}

// ---- streams ----

Machine::Machine() {
  for (Arena& arena : arenas_) map_memory(arena);
}

/// Never destroyed: threads of streams, and tensors of static lifetime, outlive main.
Machine& Machine::the() {
  static auto* const machine = new Machine;
  return *machine;
}

Queue& Machine::queue_locked(int key) {
  std::unique_ptr<Queue>& queue = queues_[key];
  if (!queue) {
    queue = std::make_unique<Queue>(key);
    queue->seed(seed_, most_us_);
  }
  return *queue;
}

Queue& Machine::queue(int key) {
  const std::lock_guard lock(mutex_);
  return queue_locked(key);
}

void Machine::tick(int stream, int device) {
  Clock& clock = queue_locked(stream).clock;
  join(clock, host_[static_cast<std::size_t>(device)]);
  ++clock[stream];
}

void Machine::launch(int stream, int device, const std::string& name,
                     const std::vector<const void*>& reads, const std::vector<const void*>& writes,
                     std::function<void()> work) {
  const std::lock_guard lock(mutex_);
  ++counts_[static_cast<std::size_t>(device)].launches;
  tick(stream, device);
  for (const bool writing : {false, true})
    for (const void* memory : writing ? writes : reads) {
      if (!writing && std::ranges::find(writes, memory) != writes.end()) continue;
      Block* block = block_at(memory);
      if (!block) continue;
      if (!block->live) findings_.push_back(name + " touches memory that was freed");
      touch(*block, stream, name, writing);
    }
  queue_locked(stream).push(
      [this, name, work = std::move(work)] {
        try {
          work();
        } catch (const std::exception& error) {
          find(name + ": " + std::string(error.what()).substr(0, 300));
        }
      },
      true);
}

void Machine::count_event(int device) {
  const std::lock_guard lock(mutex_);
  ++counts_[static_cast<std::size_t>(device)].events;
}

Point Machine::record(int stream, int device) {
  const std::lock_guard lock(mutex_);
  Point point;
  Queue& queue = queue_locked(stream);
  join(queue.clock, host_[static_cast<std::size_t>(device)]);
  point.clock = queue.clock;
  queue.push(
      [passed = point.passed] {
        *passed = true;
        passed->notify_all();
      },
      false);
  return point;
}

void Machine::block(const Point& point, int stream, int device) {
  const std::lock_guard lock(mutex_);
  ++counts_[static_cast<std::size_t>(device)].waits;
  if (++asked_ == dropped_ || dropped_ < 0) return;
  Queue& queue = queue_locked(stream);
  join(queue.clock, point.clock);
  queue.push([passed = point.passed] { passed->wait(false); }, false);
}

void Machine::host_waited(const Clock& clock, int device, bool counts) {
  const std::lock_guard lock(mutex_);
  if (counts) ++counts_[static_cast<std::size_t>(device)].host_syncs;
  join(host_[static_cast<std::size_t>(device)], clock);
}

void Machine::synchronise_stream(int stream, int device) {
  queue(stream).drain();
  Clock clock;
  {
    const std::lock_guard lock(mutex_);
    clock = queue_locked(stream).clock;
  }
  host_waited(clock, device, true);
}

void Machine::synchronise_device(int device) {
  std::vector<int> keys;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, queue] : queues_)
      if (key == device || key / 1000 == device + 1) keys.push_back(key);
  }
  for (const int key : keys) synchronise_stream(key, device);
}

// ---- memory ----

Block* Machine::block_at(const void* memory) {
  const int device = device_of(memory);
  if (device < 0) return nullptr;
  Arena& arena = arenas_[static_cast<std::size_t>(device)];
  const auto offset = static_cast<std::size_t>(static_cast<const std::byte*>(memory) - arena.base);
  auto found = arena.blocks.upper_bound(offset);
  if (found == arena.blocks.begin()) return nullptr;
  Block* block = std::prev(found)->second.get();
  return offset < block->offset + block->size ? block : nullptr;
}

int Machine::device_of(const void* memory) {
  for (int device = 0; device < kDevices; ++device) {
    const std::byte* base = arenas_[static_cast<std::size_t>(device)].base;
    if (memory >= base && memory < base + kArenaBytes) return device;
  }
  return -1;
}

void* Machine::alias_of(const void* memory) {
  const int device = device_of(memory);
  if (device < 0) return const_cast<void*>(memory);
  const Arena& arena = arenas_[static_cast<std::size_t>(device)];
  return arena.alias + (static_cast<const std::byte*>(memory) - arena.base);
}

void Machine::expect_after(const Access& before, const char* what, int stream,
                           const std::string& name) {
  if (before.stream < 0 || before.stream == stream) return;
  if (queue_locked(stream).clock[before.stream] >= before.tick) return;
  findings_.push_back(name + " on " + stream_name(stream) + " does not wait for the " + what +
                      " by " + before.name + " on " + stream_name(before.stream));
}

void Machine::touch(Block& block, int stream, const std::string& name, bool writes) {
  expect_after(block.write, "write", stream, name);
  const Access access{stream, queue_locked(stream).clock[stream], name};
  if (!writes) {
    block.reads[stream] = access;
    return;
  }
  for (const auto& [other, read] : block.reads) expect_after(read, "read", stream, name);
  block.reads.clear();
  block.write = access;
}

/// Memory that was recorded for other streams waits until these have passed.
Block* Machine::reusable(int device, int stream, std::size_t size) {
  for (auto& [offset, block] : arenas_[static_cast<std::size_t>(device)].blocks)
    if (!block->live && block->stream == stream && block->size == size &&
        std::ranges::all_of(block->pending,
                            [](const Point& point) { return point.passed->load(); }))
      return block.get();
  return nullptr;
}

/// Its stream goes on to write to it, in an order with whoever touched it before or not.
void Machine::reuse(Block& block) {
  block.live = true;
  for (const Point& point : block.pending) join(queue_locked(block.stream).clock, point.clock);
  block.pending.clear();
  tick(block.stream, block.device);
  touch(block, block.stream, "memory given out again", true);
  std::byte* const memory = arenas_[static_cast<std::size_t>(block.device)].alias + block.offset;
  queue_locked(block.stream)
      .push([memory, size = block.size] { std::memset(memory, 0xFF, size); }, false);
}

c10::DataPtr Machine::allocate(std::size_t bytes, int device, int stream) {
  const c10::Device where = sim::device(device);
  if (bytes == 0) return {nullptr, nullptr, &free_nothing, where};
  const std::lock_guard lock(mutex_);
  Arena& arena = arenas_[static_cast<std::size_t>(device)];
  Counts& counts = counts_[static_cast<std::size_t>(device)];
  const std::size_t size = (bytes + kGrain - 1) / kGrain * kGrain;
  Block* block = reusable(device, stream, size);
  if (block) {
    reuse(*block);
  } else {
    if (arena.used + size > kArenaBytes) throw std::bad_alloc();
    ++counts.allocations;
    auto made = std::make_unique<Block>();
    made->device = device;
    made->offset = arena.used;
    made->size = size;
    made->stream = stream;
    std::memset(arena.alias + made->offset, 0xFF, size);
    arena.used += size;
    block = made.get();
    arena.blocks.emplace(block->offset, std::move(made));
  }
  counts.bytes += size;
  counts.peak_bytes = std::max(counts.peak_bytes, counts.bytes);
  return {arena.base + block->offset, block, &free_block, where};
}

void Machine::free(Block* block) {
  const std::lock_guard lock(mutex_);
  block->live = false;
  counts_[static_cast<std::size_t>(block->device)].bytes -= block->size;
  for (const int stream : block->recorded) {
    Point& point = block->pending.emplace_back();
    point.clock = queue_locked(stream).clock;
    queue_locked(stream).push([passed = point.passed] { *passed = true; }, false);
  }
  block->recorded.clear();
}

void Machine::record_stream(const void* memory, int stream) {
  const std::lock_guard lock(mutex_);
  Block* block = block_at(memory);
  if (block && block->stream != stream) block->recorded.push_back(stream);
}

// ---- what tests ask ----

void Machine::find(std::string text) {
  const std::lock_guard lock(mutex_);
  findings_.push_back(std::move(text));
}

std::vector<std::string> Machine::take_findings() {
  std::vector<Queue*> queues;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, queue] : queues_) queues.push_back(queue.get());
  }
  for (Queue* queue : queues) queue->drain();
  const std::lock_guard lock(mutex_);
  return std::exchange(findings_, {});
}

void Machine::seed(std::uint64_t seed, int most_us) {
  const std::lock_guard lock(mutex_);
  seed_ = seed;
  most_us_ = most_us;
  for (const auto& [key, queue] : queues_) queue->seed(seed, most_us);
}

Counts Machine::counts(int device) {
  const std::lock_guard lock(mutex_);
  return counts_[static_cast<std::size_t>(device)];
}

void Machine::reset_counts(int device) {
  const std::lock_guard lock(mutex_);
  Counts& counts = counts_[static_cast<std::size_t>(device)];
  counts = {.bytes = counts.bytes, .peak_bytes = counts.bytes};
}

void Machine::drop_wait(int number) {
  const std::lock_guard lock(mutex_);
  dropped_ = number;
  asked_ = 0;
}

int Machine::waits_asked() {
  const std::lock_guard lock(mutex_);
  return asked_;
}

}  // namespace tessera::sim

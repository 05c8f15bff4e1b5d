#pragma once
// What stands behind the simulated accelerator: clocks, streams and memory of all devices, under
// one lock. See device.h.
#include <c10/core/Allocator.h>
#include <c10/core/Stream.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "tests/fsdp/sim/device.h"

namespace tessera::sim {

/// Per stream, by its key: the last of its pieces of work that is known to have run.
using Clock = std::map<int, std::uint64_t>;
void join(Clock& into, const Clock& other);

/// A stream's key: default streams have their device's index, others their id.
int key_of(const c10::Stream& stream);

/// The work of one stream, run in order by a thread of its own. The threads are never joined.
class Queue {
 public:
  explicit Queue(int key) : key_(key) {}
  void push(std::function<void()> work, bool late);
  void drain();
  bool idle();
  void seed(std::uint64_t seed, int most_us);

  Clock clock;  // under the machine's lock

 private:
  void loop();

  const int key_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<std::function<void()>, bool>> work_;
  bool busy_ = false, started_ = false;
  std::mt19937_64 random_;
  int most_us_ = 0;
};

/// A point in a stream's work.
struct Point {
  Clock clock;
  std::shared_ptr<std::atomic<bool>> passed = std::make_shared<std::atomic<bool>>(false);
};

/// Who touched a block last.
struct Access {
  int stream = -1;
  std::uint64_t tick = 0;
  std::string name;
};
struct Block {
  int device = 0;
  std::size_t offset = 0, size = 0;  // in the device's memory
  int stream = 0;                    // that it was allocated on
  bool live = true;
  Access write;
  std::map<int, Access> reads;
  std::vector<int> recorded;   // streams by record_stream
  std::vector<Point> pending;  // of these streams, when it was freed
};

/// The memory of one device, mapped twice: where tensors point it cannot be touched, and at `alias`
/// it can.
struct Arena {
  std::byte* base = nullptr;
  std::byte* alias = nullptr;
  std::size_t used = 0;
  std::map<std::size_t, std::unique_ptr<Block>> blocks;  // by offset
};

class Machine {
 public:
  static Machine& the();

  // -- streams --
  Queue& queue(int key);
  void launch(int stream, int device, const std::string& name,
              const std::vector<const void*>& reads, const std::vector<const void*>& writes,
              std::function<void()> work);
  Point record(int stream, int device);
  void count_event(int device);  // made
  void block(const Point& point, int stream, int device);
  void host_waited(const Clock& clock, int device, bool counts);
  void synchronise_stream(int stream, int device);
  void synchronise_device(int device);

  // -- memory --
  c10::DataPtr allocate(std::size_t bytes, int device, int stream);
  void free(Block* block);
  void record_stream(const void* memory, int stream);
  void* alias_of(const void* memory);
  /// The device whose memory it is; -1: none's.
  int device_of(const void* memory);

  // -- what tests ask --
  void find(std::string text);
  std::vector<std::string> take_findings();
  void seed(std::uint64_t seed, int most_us);
  Counts counts(int device);
  void reset_counts(int device);
  void drop_wait(int number);
  int waits_asked();

 private:
  Machine();
  Queue& queue_locked(int key);
  Block* block_at(const void* memory);
  void tick(int stream, int device);
  void touch(Block& block, int stream, const std::string& name, bool writes);
  void expect_after(const Access& before, const char* what, int stream, const std::string& name);
  Block* reusable(int device, int stream, std::size_t size);
  void reuse(Block& block);

  std::mutex mutex_;
  std::map<int, std::unique_ptr<Queue>> queues_;
  std::array<Clock, kDevices> host_;  // what each device's host threads know to have run
  std::array<Arena, kDevices> arenas_;
  std::array<Counts, kDevices> counts_{};
  std::vector<std::string> findings_;
  std::uint64_t seed_ = 0;
  int most_us_ = 0;
  int dropped_ = 0, asked_ = 0;
};

/// The calling thread's device, and its stream on each.
int current_device();
void register_operators();
/// The memory of the current device.
c10::Allocator* allocator();

}  // namespace tessera::sim

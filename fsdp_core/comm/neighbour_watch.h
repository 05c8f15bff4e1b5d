#pragma once
// NeighbourWatch: notices that a process of the world is gone while nobody waits for it, or while
// those who do wait for another one first. Ranks stand in a ring: each holds a connection to the
// next, on which nothing is ever sent, and a thread waits for its end. Where that ends without a
// goodbye, the thread tells the failure board, ends all groups of this rank, and closes its own
// connections, which the rank before it notices in its turn: a few milliseconds a rank, all round.
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <thread>

#include "fsdp_core/comm/gloo_comm.h"
#include "fsdp_core/comm/gloo_wire.h"

namespace tessera::fsdp {

class NeighbourWatch {
 public:
  /// Collective over all `size` ranks of the world, two at least.
  NeighbourWatch(StoreLink link, int rank, int size);
  /// The board knows before that this rank leaves, and how.
  ~NeighbourWatch();
  NeighbourWatch(const NeighbourWatch&) = delete;
  NeighbourWatch& operator=(const NeighbourWatch&) = delete;

 private:
  void run();
  void wait_for_end();
  /// Why the world is lost; nothing where this rank or the next has left as it should.
  std::optional<Status> cause();
  /// True at once when this rank leaves meanwhile.
  bool leaves_within(std::chrono::milliseconds time);

  const StoreLink link_;
  const int next_;
  const int next_member_;  // of the two that share its connection
  std::unique_ptr<GlooWire> to_next_, to_previous_;
  std::byte never_{};  // what the next rank never sends
  std::mutex mutex_;
  std::condition_variable leaves_;
  bool leaving_ = false;
  std::thread thread_;
};

}  // namespace tessera::fsdp

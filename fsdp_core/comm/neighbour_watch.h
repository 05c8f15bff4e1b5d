#pragma once
// NeighbourWatch: notices that a process of the world is gone while nobody waits for it, or while
// those who do wait for another one first. Ranks stand in a ring: each is connected to the one
// before and the one after it, and a thread for each waits for its word:
//
//   goodbye       it ends its world: nothing is wrong
//   lost          it knows of a rank that is gone, or that gave up
//   no word, and the connection has ended: that one is gone
//
// A rank that learns that the world is lost passes it on, both ways: round the ring in a few
// milliseconds a
// rank, and past a process that is stopped the other way. Then it ends all groups of its own rank.
// The store has no part in it: the rank that keeps it may be the one that is gone.
#include <array>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

#include "fsdp_core/comm/gloo_comm.h"
#include "fsdp_core/comm/gloo_wire.h"

namespace tessera::fsdp {

class NeighbourWatch {
 public:
  /// Collective over all `size` ranks of the world, two at least, that have met.
  NeighbourWatch(StoreLink link, int rank, int size);
  /// Says goodbye, unless the world is lost.
  ~NeighbourWatch();
  NeighbourWatch(const NeighbourWatch&) = delete;
  NeighbourWatch& operator=(const NeighbourWatch&) = delete;

  /// This rank gives up, or knows a rank that has: `why` names it. The word goes to all ranks.
  /// The first reason stays.
  void lose(const Status& why) noexcept;

 private:
  struct Word {
    enum Kind : std::int32_t { kGoodbye = 1, kLost = 2 };
    std::int32_t kind = 0;
    std::int32_t rank = -1;
    std::int32_t code = 0;
    std::array<char, 500> text{};  // ends with 0
  };
  /// The connection to one neighbour: two wires, since the thread that waits for its word is never
  /// the one that sends ours.
  struct Neighbour {
    Neighbour(c10::intrusive_ptr<c10d::Backend> backend, int rank, int member);
    const int rank;
    const int member;  // of the two that share the connection
    GlooWire hears, sends;
    Word theirs;
    std::thread thread;
  };

  static std::unique_ptr<Neighbour> connect(int first, int rank, int size, const StoreLink& link);
  void listen(Neighbour& neighbour);
  void send(Neighbour& neighbour, const Word& word) noexcept;
  /// True at once when this rank leaves, or the world is lost otherwise.
  bool over_within(std::chrono::milliseconds time);

  const StoreLink link_;
  std::mutex mutex_;
  std::condition_variable over_;
  bool leaving_ = false;
  bool lost_ = false;
  std::unique_ptr<Neighbour> next_, previous_;
};

}  // namespace tessera::fsdp

#pragma once
// A turn of one thread at the compressed items of some tensors: each item is decoded once, however
// many reads it serves.
//
// A read of a block touches the items that lie across it, and the next block touches them again. So
// a turn first takes the room for all items that a pass over its tensors needs at the same time
// (for one tensor the most that lie across one block), and its worker keeps them until the pass has
// left them behind. Turns that do not fit at once come one after the other; a tensor that needs
// more than there is takes all of it, and decodes again what it has to drop.
#include <tessera/base/progress.h>

#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "lib/reshard/coded_gate.h"
#include "lib/reshard/geometry.h"
#include "lib/reshard/worker.h"

namespace tessera {

/// What passes over some tensors, side by side, need of their compressed items.
struct ItemWindow {
  struct Place {
    std::uint32_t tensor = 0;
    std::int64_t last_element = 0;  // of the tensor's ravel: no element behind it is in the item
  };
  std::map<std::pair<std::uint32_t, std::uint64_t>, Place> items;  // by file and offset
  std::uint64_t bytes = 0;  // decoded at the same time, and the one that is being read

  /// Adds `tensor`, of which `step` elements at a time are read.
  void add(const Manifest& manifest, std::uint32_t tensor, const Geometry& geometry,
           std::int64_t step);
};

class ItemTurn {
 public:
  /// Waits for room in `turns`. One thread holds one turn of the same gate at a time.
  ItemTurn(CodedGate& turns, Worker& worker, ItemWindow window, const CancelToken* cancel);
  /// Drops what was decoded.
  ~ItemTurn();
  ItemTurn(const ItemTurn&) = delete;
  ItemTurn& operator=(const ItemTurn&) = delete;

  /// The next read of `tensor` begins at `element`: items that end before it are dropped.
  void reach(std::uint32_t tensor, std::int64_t element);

 private:
  CodedGate& turns_;
  Worker& worker_;
  ItemWindow window_;
  std::uint64_t taken_;
};

}  // namespace tessera

#pragma once
// LiveMemory: at::Tensors as pieces of a LiveState. What lies in host memory in the stored type is
// borrowed as it is; anything else (on a GPU, of another type, a parameter's second name) goes
// through a copy of its own:
//
//   before a save   tensor -> copy          (refresh)
//   after a load    copy -> tensor          (write_back, of the names that were filled)
//
// Copies of a device's tensors are pinned, and are made by refresh() alone: all together, on a stream
// of their own; the host waits once, when and where the caller says (staged_copies.h).
//
// Whole values of sharded tensors, and equal rows of them, are such copies too, gathered when they
// are added; what a load brings into them is scattered aside first (scatter), so that no rank's
// tensors change before all ranks have theirs.
//
// Whatever a load fills gets its version counter moved, by which units see that what they gathered
// is old.
#include <ATen/core/Tensor.h>
#include <tessera/state/live_state.h>

#include <deque>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "fsdp_core/bridge/change_watch.h"
#include "fsdp_core/bridge/spread.h"
#include "fsdp_core/bridge/staged_copies.h"

namespace tessera::fsdp {

class LiveMemory {
 public:
  /// A LiveTensor of type `dtype` and shape `shape` of which `local` is `chunk`. `name` is its name
  /// in the state; `copied`: never borrowed. `is_buffer`: may change in a forward.
  LiveTensor piece(const std::string& name, const at::Tensor& local, at::ScalarType dtype,
                   const Shape& shape, Chunk chunk, bool copied = false, bool is_buffer = false);
  /// A copy, for a tensor of which several names are stored: a load proves that they all hold the
  /// same values, those of the name `first`, which has "" here.
  LiveTensor name_apart(const std::string& name, const std::string& first, const at::Tensor& local,
                        at::ScalarType dtype, const Shape& shape, Chunk chunk);

  /// What `spread.form` says of what `local` is a shard of, as it is now: a copy, or no piece where
  /// nothing is kept. `fill`: false where the values are going to be loaded; else collective over
  /// the unit's ranks.
  LiveTensor spread(const std::string& name, const at::Tensor& local, Spread spread, bool fill);
  /// The spreads `second` and `first` are of one tensor: as name_apart.
  void tie(const std::string& second, const std::string& first);
  /// Undoes name_apart and tie, which are of one load.
  void forget_ties();

  /// Before anything borrowed is filled. Throws kCorrupt, naming both, where names of one tensor
  /// were given different values; kInvalidArgument where elements of a tensor share memory.
  void check(const std::unordered_set<std::string>& loaded) const;
  /// This rank's shards of the spreads that were loaded, aside. Collective over their units' ranks.
  void scatter(const std::unordered_set<std::string>& loaded);

  /// Copies of a device's tensors are left to `staged`, which is begun after the last of them.
  void refresh(StagedCopies& staged);
  /// Precondition: check and scatter passed.
  void write_back(const std::unordered_set<std::string>& loaded);
  /// Watches all borrowed memory for changes since the last refresh().
  std::shared_ptr<const ChangeWatch> watch() const { return watch_; }

 private:
  struct Held {
    std::string name;
    std::string first;  // second names: the other one
    at::Tensor tensor;
    at::Tensor copy;                       // undefined: borrowed, or a spread that is not here
    at::Tensor shard;                      // of a spread, by scatter
    std::unique_ptr<const Spread> spread;  // few have one
    bool apart = false;                    // by name_apart
    bool is_buffer = false;
    bool staged() const { return copy.defined() && !spread && !tensor.is_cpu(); }
  };
  std::deque<Held> held_;  // many: no room for more, no copies while it grows
  std::shared_ptr<ChangeWatch> watch_ = std::make_shared<ChangeWatch>();
};

}  // namespace tessera::fsdp

#pragma once
// LiveMemory: at::Tensors as pieces of a LiveState. What lies in host memory in the stored type is
// borrowed as it is; anything else (on a GPU, of another type, a parameter's second name) goes
// through a copy of its own:
//
//   before a save   tensor -> copy          (refresh)
//   after a load    copy -> tensor          (write_back, of the names that were filled)
//
// Whole values of sharded tensors are such copies too, gathered when they are added.
//
// Whatever a load fills gets its version counter moved, by which units see that what they gathered
// is old.
#include <ATen/core/Tensor.h>
#include <tessera/state/live_state.h>

#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "fsdp_core/bridge/spread.h"

namespace tessera::fsdp {

class LiveMemory {
 public:
  /// A LiveTensor of type `dtype` and shape `shape` of which `local` is `chunk`. `name` is its name
  /// in the state; `copied`: never borrowed.
  LiveTensor piece(const std::string& name, const at::Tensor& local, at::ScalarType dtype,
                   const Shape& shape, Chunk chunk, bool copied = false);
  /// As above, for a second name of memory that is borrowed already: a load proves that both names
  /// hold the same values.
  LiveTensor second_name(const std::string& name, const std::string& first, const at::Tensor& local,
                         at::ScalarType dtype, const Shape& shape, Chunk chunk);

  /// The whole of what `local` is a shard of, as it is now, in an equal copy on every rank or on
  /// the unit's first one alone (elsewhere the result has no piece). `fill`: false where the values
  /// are going to be loaded. Collective over the unit's ranks, as write_back is then.
  LiveTensor whole(const std::string& name, const at::Tensor& local, Spread spread, bool fill);

  void refresh();
  /// Throws kCorrupt, naming both, where names of one tensor were given different values.
  void write_back(const std::unordered_set<std::string>& loaded);

 private:
  struct Held {
    std::string name;
    std::string first;  // second names: the other one
    at::Tensor tensor;
    at::Tensor copy;  // undefined: borrowed, or a whole that is not here
    std::optional<Spread> spread;
  };
  std::vector<Held> held_;
};

}  // namespace tessera::fsdp

#pragma once
// An optimizer whose state is keyed by FQN, as Megatron's ranks store theirs: ids in the order of
// their groups, masters of 16-bit parameters in lists; or, for the distributed optimizer (groups
// that list no members), flat buffers in distrib_optim.pt. The inverse of merge_optimizer().
#include <tessera/state/optim_state.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lib/format/megatron_torch/rank_writer.h"

namespace tessera::megatron_torch {

/// A tensor of the model dict that a rank is being given.
struct WrittenTensor {
  std::string fqn;  // in the whole model; a tied copy: the embedding's
  std::uint32_t tensor = 0;
  bool tied_copy = false;
  bool shared_embedding = false;
};

class OptimizerOutput {
 public:
  /// Finds the optimizer below `optimizer` in the source. Throws kUnsupported for an optimizer that
  /// ranks cannot share (`shares`: there is more than one rank).
  OptimizerOutput(const Manifest& source, const Args& args, bool shares);

  /// Entry i of the source is written here, not by whoever copies the rest.
  bool owns(std::size_t entry) const { return owned_[entry]; }
  /// Writes a rank's part. `tensors`: its model dict's, in order.
  void write(RankWriter& out, const TargetCut& cut, std::int64_t tp_rank,
             const std::vector<WrittenTensor>& tensors) const;
  /// The rank's distrib_optim.pt; nullopt: the optimizer is no distributed one.
  std::optional<ArchiveFile> buckets(const TargetCut& cut, std::int64_t tp_rank,
                                     const std::vector<WrittenTensor>& tensors,
                                     const std::string& path) const;

 private:
  struct Group {
    Path path;  // ... param_groups, i
    bool lists_members = false;
    std::vector<std::string> members;  // FQNs
  };
  void find();
  void own_groups();
  void write_masters(RankWriter& out, const TargetCut& cut, std::int64_t tp_rank,
                     const std::vector<std::vector<const WrittenTensor*>>& groups) const;
  RankPart part_of(const TargetCut& cut, std::int64_t tp_rank, const WrittenTensor& of,
                   std::uint32_t tensor) const;
  Value buffer_set(RankWriter& out, const TargetCut& cut, std::int64_t tp_rank,
                   const std::vector<WrittenTensor>& tensors) const;

  const Manifest& source_;
  const Args& args_;
  bool shares_;
  bool distributed_ = false;
  Path base_;
  std::optional<OptimState> optim_;
  std::map<std::string, const OptimParameter*> by_fqn_;
  std::vector<Group> groups_;
  std::vector<bool> owned_;
};

}  // namespace tessera::megatron_torch

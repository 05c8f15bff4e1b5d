#pragma once
// An optimizer as Megatron's ranks store theirs: ids in the order of their groups, masters of
// 16-bit parameters in lists; or, for the distributed optimizer (groups that list no members), flat
// buffers in distrib_optim.pt (buffer_output.h). The inverse of merge_optimizer().
#include <tessera/state/optim_state.h>
#include <tessera/state/roles.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
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
  std::size_t chunk = 0;  // model chunk of an interleaved pipeline
};

/// The leaf that holds the fp32 copy of a 16-bit weight, as Megatron's formats call it; nullptr: none.
const OptimLeaf* master_of(const OptimParameter& parameter);

class OptimizerOutput {
 public:
  /// Finds the source's optimizer. `ranks`: of the target. `splits_experts`: expert-parallel ranks
  /// share the experts, which have an optimizer of their own then. Throws kUnsupported for an
  /// optimizer that ranks cannot share.
  OptimizerOutput(const Manifest& source, const Roles& roles, const Args& args, std::int64_t ranks,
                  bool splits_experts);

  bool found() const { return optim_.has_value(); }
  /// Where it stands in the source; "": at the top. With found() alone.
  const std::string& root() const { return optim_->root; }
  /// That is where Megatron looks for it.
  bool stands_in_place() const;
  /// Entry i of the source is written here, not by whoever copies the rest.
  bool owns(std::size_t entry) const { return owned_[entry]; }
  /// Throws kUnsupported for state that no rank would hold: of parameters that the model lacks, or
  /// that no group lists. `model`: names of the model's tensors.
  void check_complete(const std::set<std::string>& model) const;

  /// Looks whether a reader would find the same members, in the same order, in a rank's part; if
  /// not, groups record them (kMembers). To be asked for every rank before the first is written.
  /// Arguments as write() has them. `order`: names of the model's tensors, in its order;
  /// `ep`: expert-parallel ranks.
  void plan_record(const TargetCut& cut, std::int64_t rank,
                   const std::vector<WrittenTensor>& tensors);
  void plan_order(const std::vector<std::string>& order, std::int64_t ep);
  /// Writes a rank's part. `rank`: as TargetCut::part takes it. `tensors`: its model dict's, in
  /// order, chunk by chunk. `keeps`: is entry i of the source wanted?
  void write(RankWriter& out, const TargetCut& cut, std::int64_t rank,
             const std::vector<WrittenTensor>& tensors,
             const std::function<bool(std::size_t)>& keeps) const;
  /// A container below `optimizer`, where it is none of state and groups, which are made anew.
  void add_container(RankWriter& out, const ContainerNote& note) const;
  /// The rank's distrib_optim.pt; nullopt: the optimizer is no distributed one.
  std::optional<ArchiveFile> buckets(const TargetCut& cut, std::int64_t rank,
                                     const std::vector<WrittenTensor>& tensors,
                                     const std::string& path) const;

 private:
  struct Option {
    std::size_t entry = 0;
    Path path;  // below the group
    Value value;
  };
  struct Group {
    std::int64_t index = 0;
    bool lists_members = false;
    std::vector<std::string> listed = {};  // FQNs, as the source has them
    std::set<std::string> members = {};
    std::vector<Option> options = {};
  };
  /// The groups and tensors of one of the rank's optimizers: that of dense parameters, or experts.
  struct Share {
    Path base;  // {optimizer}, or {optimizer, i}
    std::optional<bool> experts;
    std::vector<const Group*> groups;
    std::vector<const WrittenTensor*> tensors;
  };
  using Numbered = std::vector<std::vector<const WrittenTensor*>>;  // per group

  void choose(const Roles& roles, std::int64_t ranks);
  void own(const Roles& roles, std::int32_t root);
  void add_option(std::int64_t group, Option option);
  bool lists_params(const Roles& roles, std::int32_t root, std::int64_t group) const;
  bool belongs(const Group& group, bool experts) const;
  std::vector<Share> shares(const std::vector<WrittenTensor>& tensors) const;
  static Numbered number(const Share& share);
  Numbered write_groups(RankWriter& out, const Share& share,
                        const std::function<bool(std::size_t)>& keeps) const;
  Value written_option(RankWriter& out, const Share& share, const Group& group,
                       const Option& option,
                       const std::vector<const WrittenTensor*>& tensors) const;
  bool is_found_by_shape(const TargetCut& cut, std::int64_t rank, const Share& share) const;
  static Value options_of(const Group& group);
  void write_state(RankWriter& out, const TargetCut& cut, std::int64_t rank, const Share& share,
                   const Numbered& groups) const;
  void write_masters(RankWriter& out, const TargetCut& cut, std::int64_t rank, const Share& share,
                     const Numbered& groups) const;
  Path inner(const Share& share) const;
  RankPart part_of(const TargetCut& cut, std::int64_t rank, const WrittenTensor& of,
                   std::uint32_t tensor) const;

  const Manifest& source_;
  const Args& args_;
  bool splits_experts_;
  bool distributed_ = false;
  bool wrapped_ = false;  // state and groups stand in optimizer.optimizer
  bool expert_vectors_ = false;
  bool records_ = false;  // groups say their members by name
  std::optional<OptimState> optim_;
  std::map<std::string, const OptimParameter*> by_fqn_;
  std::vector<Group> groups_;
  std::vector<Option> others_;  // grad_scaler, ...: paths below {optimizer}
  std::vector<bool> owned_;
};

}  // namespace tessera::megatron_torch

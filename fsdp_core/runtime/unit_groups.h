#pragma once
// Which ranks parameters are sharded over and which replicate them, from mesh or groups and strategy
// (strategy.h): a group that the strategy does not need is one of one rank. A unit has them from its
// options; those of its parameters that options.shard_placement_fn gives a mesh have their own. Every
// ParamGroup knows its: what is done with parameters asks there, what is done with the unit asks the unit.
#include <tessera/fsdp/communicator.h>
#include <tessera/fsdp/options.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "fsdp_core/runtime/strategy.h"

namespace tessera::fsdp {

class UnitGroups {
 public:
  UnitGroups(std::shared_ptr<Communicator> shards, std::shared_ptr<Communicator> replicas)
      : shard(std::move(shards)), replicate(std::move(replicas)) {}

  std::shared_ptr<Communicator> shard;
  /// The ranks of `shard`, for reductions: `shard` itself, or a communicator of their own.
  std::shared_ptr<Communicator> reduce = shard;
  std::shared_ptr<Communicator> replicate;
  /// reshard_after_forward over k ranks: the k of the shard group that hold all parts between
  /// forward and backward; null otherwise.
  std::shared_ptr<Communicator> regather;
  std::shared_ptr<Communicator> extension;  // of options.extension's mesh; null without one
  std::optional<DeviceMesh> mesh;      // that they are of; not set: groups that the caller made
  const Strategy* strategy = nullptr;  // over that mesh
  int shards() const { return shard->size(); }
  int replicas() const { return replicate->size(); }
  int ranks() const { return shards() * replicas(); }
  /// Rank 0 of shards and replicas.
  bool is_first_rank() const { return shard->rank() == 0 && replicate->rank() == 0; }
  /// Whether both are over the same ranks in the same way.
  bool same(const UnitGroups& other) const {
    return shard == other.shard &&
           (replicate == other.replicate || (replicas() == 1 && other.replicas() == 1));
  }
  /// Sends the first rank's tensor to all others: to its shard group, then from each of those to
  /// its replicas. Contiguous and of one length on every rank. Collective.
  void broadcast(const at::Tensor& tensor, const CommTag& tag) const;
  /// After World::reset(): the groups of the same ranks on fresh connections. Collective. `options`: the
  /// unit's.
  void refresh(const Options& options);

 private:
  friend UnitGroups make_own_groups(const Options&, const DeviceMesh&);
  bool of_the_unit_ = true;
  std::uint64_t generation_ = 0;
};

/// Throws kInvalidArgument: mesh and group both given, a mesh of the wrong number of dims for the
/// strategy, a hybrid strategy without a way to know its groups, no mesh in a job of several
/// processes, resharding over a number of ranks that does not divide the shard group, or without a
/// mesh to make their group from.
UnitGroups make_unit_groups(const Options& options);
/// Those of parameters over a mesh of their own, in a unit of these options. Throws as above;
/// kInvalidArgument for a mesh of more than 2 dims.
UnitGroups make_own_groups(const Options& options, const DeviceMesh& mesh);

}  // namespace tessera::fsdp

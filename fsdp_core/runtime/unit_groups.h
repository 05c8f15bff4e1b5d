#pragma once
// Which ranks a unit's parameters are sharded over and which replicate them, from mesh or groups
// and strategy (strategy.h): a group that the strategy does not need is one of one rank.
#include <tessera/fsdp/communicator.h>
#include <tessera/fsdp/options.h>

#include <memory>

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
  int shards() const { return shard->size(); }
  int replicas() const { return replicate->size(); }
  int ranks() const { return shards() * replicas(); }
  /// Sends the first rank's tensor to all others: to its shard group, then from each of those to
  /// its replicas. Contiguous and of one length on every rank. Collective.
  void broadcast(const at::Tensor& tensor, const CommTag& tag) const;
  /// After World::reset(): the groups of the same ranks on fresh connections. Collective.
  void refresh(const Options& options);

 private:
  std::uint64_t generation_ = 0;
};

/// Throws kInvalidArgument: mesh and group both given, a mesh of the wrong number of dims for the
/// strategy, a hybrid strategy without a way to know its groups, no mesh in a job of several
/// processes, resharding over a number of ranks that does not divide the shard group, or without a
/// mesh to make their group from.
UnitGroups make_unit_groups(const Options& options);

}  // namespace tessera::fsdp

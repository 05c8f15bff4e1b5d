#include "fsdp_core/setup/unit_groups.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/fsdp/device_mesh.h>
#include <tessera/fsdp/extension.h>
#include <tessera/fsdp/world.h>

#include <cstdlib>
#include <string_view>

namespace tessera::fsdp {
namespace {

UnitGroups placed(std::shared_ptr<Communicator> group, ShardingStrategy strategy) {
  if (strategy == ShardingStrategy::kNoShard) return {single_communicator(), std::move(group)};
  return {std::move(group), single_communicator()};
}

}  // namespace

std::string_view strategy_name(ShardingStrategy strategy) {
  switch (strategy) {
    case ShardingStrategy::kFullShard:
      return "FULL_SHARD";
    case ShardingStrategy::kShardGradOp:
      return "SHARD_GRAD_OP";
    case ShardingStrategy::kNoShard:
      return "NO_SHARD";
    case ShardingStrategy::kHybridShard:
      return "HYBRID_SHARD";
    case ShardingStrategy::kHybridShardZero2:
      return "HYBRID_SHARD_ZERO2";
  }
  return "?";
}

namespace {

UnitGroups own_groups(const Options& options) {
  const ShardingStrategy strategy = options.strategy;
  if (options.mesh && options.process_group)
    fail(Code::kInvalidArgument, "options.mesh and options.process_group exclude each other",
         "set one of them");
  if (options.replicate_group && !(options.process_group && is_hybrid(strategy)))
    fail(Code::kInvalidArgument,
         fmt::format("options.replicate_group goes with options.process_group and a hybrid "
                     "strategy, not with {}",
                     strategy_name(strategy)));
  if (options.mesh) {
    if (!is_hybrid(strategy)) return placed(options.mesh->group(0), strategy);
    if (options.mesh->ndim() != 2)
      fail(Code::kInvalidArgument,
           fmt::format("{} needs a mesh of 2 dims (replicate, shard); {} has {}",
                       strategy_name(strategy), options.mesh->mesh().to_string(),
                       options.mesh->ndim()));
    return {options.mesh->group(1), options.mesh->group(0)};
  }
  if (options.process_group) {
    if (!is_hybrid(strategy)) return placed(options.process_group, strategy);
    if (!options.replicate_group)
      fail(Code::kInvalidArgument,
           fmt::format("{} with options.process_group needs options.replicate_group too",
                       strategy_name(strategy)),
           "or give a 2-D mesh");
    return {options.process_group, options.replicate_group};
  }
  if (is_hybrid(strategy))
    fail(Code::kInvalidArgument,
         fmt::format("{} needs a 2-D mesh, or process_group and replicate_group",
                     strategy_name(strategy)));
  const char* world = std::getenv("WORLD_SIZE");
  if (world != nullptr && std::string_view(world) != "1")
    fail(Code::kInvalidArgument,
         fmt::format("options.mesh is not set, but WORLD_SIZE is {}: the ranks would train apart",
                     world),
         "options.mesh = fsdp::init_from_env().mesh()");
  return {single_communicator(), single_communicator()};
}

std::shared_ptr<Communicator> regather_group(const Options& options, const Communicator& shards) {
  const int size = options.reshard_after_forward.group_size();
  if (size < 1 || shards.size() % size != 0)
    fail(Code::kInvalidArgument,
         fmt::format("reshard_after_forward = {}: {} shards are not a multiple of it", size,
                     shards.size()));
  if (size == 1 || size == shards.size()) return nullptr;
  if (!options.mesh)
    fail(Code::kUnsupported,
         fmt::format("reshard_after_forward = {} with {} shards needs options.mesh, from which "
                     "the groups of {} are made",
                     size, shards.size(), size),
         "give a mesh instead of a process group");
  const auto first = shards.global_ranks().begin() + shards.rank() / size * size;
  return options.mesh->world().group(std::vector<int>(first, first + size));
}

/// Null: the unit's parameters are whole.
std::shared_ptr<Communicator> extension_group(const Options& options) {
  if (!options.extension) return nullptr;
  const std::optional<DeviceMesh> mesh = options.extension->mesh();
  if (mesh && mesh->ndim() != 1)
    fail(Code::kInvalidArgument,
         fmt::format("the extension's mesh() has {} dims; parameters are parts along one",
                     mesh->ndim()),
         "give mesh.sub(dim)");
  return mesh ? mesh->group(0) : nullptr;
}

}  // namespace

UnitGroups make_unit_groups(const Options& options) {
  UnitGroups groups = own_groups(options);
  if (options.reshard_after_forward.is_group())
    groups.regather = regather_group(options, *groups.shard);
  groups.extension = extension_group(options);
  return groups;
}

void UnitGroups::broadcast(const at::Tensor& tensor, const CommTag& tag) const {
  if (shards() > 1 && replicate->rank() == 0) shard->broadcast(tensor, 0, tag);
  if (replicas() > 1) replicate->broadcast(tensor, 0, tag);
}

void UnitGroups::refresh(const Options& options) {
  if (options.mesh) {
    *this = make_unit_groups(options);
    return;
  }
  // Groups that the caller made have no world to ask.
  const std::uint64_t generation = ++generation_;
  if (shard->size() > 1) shard = shard->rebuild(generation);
  if (replicate->size() > 1) replicate = replicate->rebuild(generation);
  extension = extension_group(options);
}

}  // namespace tessera::fsdp

#include "fsdp_core/runtime/unit_groups.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/fsdp/device_mesh.h>
#include <tessera/fsdp/extension.h>
#include <tessera/fsdp/world.h>

#include <cstdlib>
#include <string_view>

namespace tessera::fsdp {
namespace {

/// What one group is for: it shards, or with NO_SHARD it replicates.
UnitGroups placed(std::shared_ptr<Communicator> group, const Strategy& strategy) {
  if (!strategy.shards_params) return {single_communicator(), std::move(group)};
  return {std::move(group), single_communicator()};
}

UnitGroups own_groups(const Options& options) {
  const Strategy& strategy = strategy_of(options.strategy);
  if (options.mesh && options.process_group)
    fail(Code::kInvalidArgument, "options.mesh and options.process_group exclude each other",
         "set one of them");
  if (options.replicate_group && !(options.process_group && strategy.hybrid()))
    fail(Code::kInvalidArgument,
         fmt::format("options.replicate_group goes with options.process_group and a hybrid "
                     "strategy, not with {}",
                     strategy.name));
  if (options.mesh) {
    if (!strategy.hybrid()) return placed(options.mesh->group(0), strategy);
    if (options.mesh->ndim() != 2)
      fail(Code::kInvalidArgument,
           fmt::format("{} needs a mesh of 2 dims (replicate, shard); {} has {}", strategy.name,
                       options.mesh->mesh().to_string(), options.mesh->ndim()));
    return {options.mesh->group(*strategy.shard_dim), options.mesh->group(*strategy.replicate_dim)};
  }
  if (options.process_group) {
    if (!strategy.hybrid()) return placed(options.process_group, strategy);
    if (!options.replicate_group)
      fail(Code::kInvalidArgument,
           fmt::format("{} with options.process_group needs options.replicate_group too",
                       strategy.name),
           "or give a 2-D mesh");
    return {options.process_group, options.replicate_group};
  }
  if (strategy.hybrid())
    fail(Code::kInvalidArgument,
         fmt::format("{} needs a 2-D mesh, or process_group and replicate_group", strategy.name));
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

std::shared_ptr<Communicator> reduce_group(const Options& options,
                                           const std::shared_ptr<Communicator>& shards) {
  const bool wanted = options.separate_reduce_scatter_group.value_or(
      options.mesh && shards->device_type() != at::kCPU &&
      options.backward_prefetch != BackwardPrefetch::kPost);
  if (wanted && !options.mesh)
    fail(Code::kUnsupported,
         "separate_reduce_scatter_group needs options.mesh, from which the second communicator is "
         "made",
         "give a mesh instead of a process group");
  if (!wanted || shards->size() == 1) return shards;
  return options.mesh->world().group(shards->global_ranks(), "reductions");
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
  groups.reduce = reduce_group(options, groups.shard);
  if (options.reshard_after_forward.is_group())
    groups.regather = regather_group(options, *groups.shard);
  groups.extension = extension_group(options);
  groups.mesh = options.mesh;
  groups.strategy = &strategy_of(options.strategy);
  return groups;
}

UnitGroups make_own_groups(const Options& options, const DeviceMesh& mesh) {
  if (mesh.ndim() > 2)
    fail(Code::kInvalidArgument,
         fmt::format("mesh {} has {} dims: one shards, or two replicate and shard",
                     mesh.mesh().to_string(), mesh.ndim()),
         "give mesh.sub(dim)");
  Options own = options;
  own.mesh = mesh;
  own.process_group = own.replicate_group = nullptr;
  own.strategy = strategy_over(options.strategy, mesh.ndim());
  UnitGroups groups = make_unit_groups(own);
  groups.of_the_unit_ = false;
  return groups;
}

void UnitGroups::broadcast(const at::Tensor& tensor, const CommTag& tag) const {
  if (shards() > 1 && replicate->rank() == 0) shard->broadcast(tensor, 0, tag);
  if (replicas() > 1) replicate->broadcast(tensor, 0, tag);
}

void UnitGroups::refresh(const Options& options) {
  if (mesh) {
    *this = of_the_unit_ ? make_unit_groups(options) : make_own_groups(options, DeviceMesh(*mesh));
    return;
  }
  // Groups that the caller made have no world to ask.
  const std::uint64_t generation = ++generation_;
  if (shard->size() > 1) shard = shard->rebuild(generation);
  reduce = shard;
  if (replicate->size() > 1) replicate = replicate->rebuild(generation);
  extension = extension_group(options);
}

}  // namespace tessera::fsdp

#include "lib/format/torch_rank_files/sharded_pickle.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "lib/encoding/torch_pickle.h"

namespace tessera::rank_files {
namespace {

constexpr std::string_view kShard = "torch.distributed._shard.";

Value text(std::string value) { return Value::string(std::move(value)); }
Value number(std::int64_t value) { return Value::integer(value); }

Value tuple(ValueList items) { return Value::list(std::move(items), Value::Kind::kTuple); }

Value numbers(const std::vector<std::int64_t>& values, Value::Kind kind) {
  ValueList items;
  for (const std::int64_t value : values) items.push_back(number(value));
  return Value::list(std::move(items), kind);
}

Value dict(std::vector<std::pair<std::string, Value>> fields) {
  ValueDict out;
  for (auto& [key, value] : fields) out.emplace_back(text(std::move(key)), std::move(value));
  return Value::dict(std::move(out));
}

OpaqueObject named(OpaqueObject::How how, std::string_view module, std::string_view name) {
  OpaqueObject out;
  out.how = how;
  out.module = module;
  out.name = name;
  return out;
}
Value global(std::string_view module, std::string_view name) {
  return Value::opaque(named(OpaqueObject::How::kGlobal, module, name));
}
Value call(std::string_view module, std::string_view name, ValueList arguments) {
  OpaqueObject out = named(OpaqueObject::How::kReduce, module, name);
  out.arguments = tuple(std::move(arguments));
  return Value::opaque(std::move(out));
}
Value instance(std::string_view module, std::string_view name, Value state) {
  OpaqueObject out = named(OpaqueObject::How::kNewObj, module, name);
  out.arguments = tuple({});
  out.state = std::move(state);
  out.has_state = true;
  return Value::opaque(std::move(out));
}
Value named_tuple(std::string_view module, std::string_view name, ValueList fields) {
  OpaqueObject out = named(OpaqueObject::How::kNewObj, module, name);
  out.arguments = tuple(std::move(fields));
  return Value::opaque(std::move(out));
}
/// An object with __slots__.
Value slotted(std::string_view module, std::string_view name, Value slots) {
  return instance(module, name, tuple({Value(), std::move(slots)}));
}

std::vector<std::int64_t> extents_of(const Shape& shape) {
  return {shape.extents().begin(), shape.extents().end()};
}

Value layout_value() { return call("torch.serialization", "_get_layout", {text("torch.strided")}); }
Value cpu() { return call("torch", "device", {text("cpu")}); }

Value wrapper(std::string_view module, std::string_view type, const TensorSpec& spec,
              bool requires_grad, Value state) {
  const Value cls = global(module, type);
  Value arguments =
      tuple({cls, Value::dtype(spec.dtype), numbers(extents_of(spec.shape), Value::Kind::kTuple),
             numbers(contiguous_strides(spec.shape), Value::Kind::kTuple), number(0),
             layout_value(), cpu(), Value::boolean(requires_grad)});
  return call("torch._tensor", "_rebuild_from_type_v2",
              {global("torch._utils", "_rebuild_wrapper_subclass"), cls, std::move(arguments),
               std::move(state)});
}

Value placement_value(const Placement& placement) {
  constexpr std::string_view kModule = "torch.distributed.tensor.placement_types";
  switch (placement.kind) {
    case Placement::Kind::kShard:
      return instance(kModule, "Shard", dict({{"dim", number(placement.dim)}}));
    case Placement::Kind::kStridedShard:
      return instance(
          kModule, "_StridedShard",
          dict({{"dim", number(placement.dim)}, {"split_factor", number(placement.split_factor)}}));
    default:
      return instance(kModule, "Replicate", Value::dict({}));
  }
}

/// Per tensor dim the mesh dims that split it, left to right.
Value shard_order(const std::vector<Placement>& placements) {
  std::map<int, std::vector<std::int64_t>> order;
  for (std::size_t d = 0; d < placements.size(); ++d)
    if (placements[d].kind == Placement::Kind::kShard)
      order[placements[d].dim].push_back(static_cast<std::int64_t>(d));
  ValueList entries;
  for (const auto& [dim, mesh_dims] : order)
    entries.push_back(named_tuple("torch.distributed.tensor._dtensor_spec", "ShardOrderEntry",
                                  {number(dim), numbers(mesh_dims, Value::Kind::kTuple)}));
  return tuple(std::move(entries));
}

Value remote_device(std::int64_t rank) {
  return instance("torch.distributed.remote_device", "_remote_device",
                  dict({{"_worker_name", Value()}, {"_rank", number(rank)}, {"_device", cpu()}}));
}

Value shard_metadata(std::int64_t offset, std::int64_t numel, std::int64_t rank) {
  return slotted(std::string(kShard) + "metadata", "ShardMetadata",
                 dict({{"shard_offsets", numbers({offset}, Value::Kind::kList)},
                       {"shard_sizes", numbers({numel}, Value::Kind::kList)},
                       {"placement", remote_device(rank)}}));
}

}  // namespace

Value device_mesh_value(const Mesh& mesh, std::int64_t rank, std::uint32_t rank_map) {
  constexpr std::string_view kModule = "torch.distributed._mesh_layout";
  ValueList axes, names;
  std::int64_t stride = mesh.world_size();
  for (const MeshDim& dim : mesh.dims()) {
    stride /= dim.size;
    axes.push_back(instance(kModule, "_FlatLayout",
                            dict({{"shape", numbers({dim.size}, Value::Kind::kTuple)},
                                  {"stride", numbers({stride}, Value::Kind::kTuple)}})));
    names.push_back(text(dim.name));
  }
  std::vector<std::int64_t> ranks(static_cast<std::size_t>(mesh.world_size()));
  for (std::size_t r = 0; r < ranks.size(); ++r) ranks[r] = static_cast<std::int64_t>(r);
  // Only a 1-D mesh's group has a name that is the same everywhere: the default group's.
  std::vector<std::pair<std::string, Value>> fields = {
      {"_device_type", text("cpu")},
      {"_layout", instance(kModule, "_MeshLayout", dict({{"axes", tuple(std::move(axes))}}))},
      {"_rank_map", Value::tensor(rank_map)},
      {"_mesh_dim_names", tuple(std::move(names))},
      {"_root_mesh", Value()},
      {"_preserve_rank_order", Value::boolean(false)},  // 2.15 asks for it, older ones do not look
      {"_flatten_rank_map", numbers(ranks, Value::Kind::kTuple)},
      {"_thread_id", Value()},
      {"_flatten_mapping", Value::dict({})}};
  if (mesh.rank() == 1) fields.emplace_back("_dim_group_names", Value::list({text("0")}));
  fields.emplace_back("_rank", number(rank));
  fields.emplace_back("_coordinate_on_dim", numbers(mesh.coordinate(rank), Value::Kind::kTuple));
  return instance("torch.distributed.device_mesh", "DeviceMesh", dict(std::move(fields)));
}

Value dtensor_value(const TensorSpec& spec, const Layout& layout, const Value& device_mesh,
                    Value local) {
  constexpr std::string_view kModule = "torch.distributed.tensor._dtensor_spec";
  ValueList placements;
  bool strided = false;
  for (const Placement& placement : layout.placements()) {
    placements.push_back(placement_value(placement));
    strided = strided || placement.kind == Placement::Kind::kStridedShard;
  }
  Value meta = named_tuple(
      kModule, "TensorMeta",
      {Value::size(extents_of(spec.shape)),
       numbers(contiguous_strides(spec.shape), Value::Kind::kTuple), Value::dtype(spec.dtype)});
  Value description =
      instance(kModule, "DTensorSpec",
               dict({{"mesh", device_mesh},
                     {"placements", tuple(std::move(placements))},
                     {"tensor_meta", std::move(meta)},
                     {"shard_order", strided ? Value() : shard_order(layout.placements())},
                     {"use_strided_shard_as_shard_order", Value::boolean(strided)},
                     {"_hash", Value()}}));
  Value slots = dict({{"_local_tensor", std::move(local)}, {"_spec", std::move(description)}});
  return wrapper("torch.distributed.tensor", "DTensor", spec, false,
                 tuple({Value(), std::move(slots)}));
}

Value flat_sharded_tensor_value(DType dtype, std::int64_t numel, std::int64_t shard_numel,
                                std::int64_t rank, std::int64_t world_size, bool requires_grad,
                                std::optional<std::uint32_t> local) {
  const std::string package = std::string(kShard) + "sharded_tensor.";
  ValueList all, devices, mine;
  for (std::int64_t r = 0; r < world_size; ++r) {
    const std::int64_t begin = std::min(r * shard_numel, numel);
    const std::int64_t length = std::min(shard_numel, numel - begin);
    if (length == 0) continue;
    const Value metadata = shard_metadata(begin, length, r);
    if (r == rank && local)
      mine.push_back(slotted(package + "shard", "Shard",
                             dict({{"tensor", Value::tensor(*local)}, {"metadata", metadata}})));
    all.push_back(metadata);
    devices.push_back(remote_device(r));
  }
  Value properties =
      instance(package + "metadata", "TensorProperties",
               tuple({Value::dtype(dtype), layout_value(), Value::boolean(requires_grad),
                      call(package + "metadata", "MEM_FORMAT_ENCODING", {number(0)}),
                      Value::boolean(false)}));
  Value metadata = instance(package + "metadata", "ShardedTensorMetadata",
                            dict({{"shards_metadata", Value::list(std::move(all))},
                                  {"size", Value::size({numel})},
                                  {"tensor_properties", std::move(properties)}}));
  Value group = instance(package + "api", "ShardedTensor.ProcessGroupState",
                         dict({{"local_rank", number(rank)},
                               {"global_rank", number(rank)},
                               {"local_world_size", number(world_size)},
                               {"global_world_size", number(world_size)}}));
  Value spec =
      instance(std::string(kShard) + "sharding_spec.chunk_sharding_spec", "ChunkShardingSpec",
               dict({{"dim", number(0)}, {"placements", Value::list(std::move(devices))}}));
  return wrapper(package + "api", "ShardedTensor", {dtype, Shape{numel}}, requires_grad,
                 tuple({Value::list(std::move(mine)), std::move(metadata), std::move(group),
                        std::move(spec), Value::boolean(false)}));
}

}  // namespace tessera::rank_files

#include "lib/format/torch_rank_files/sharded_value.h"

#include <fmt/format.h>
#include <tessera/base/checked.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include <algorithm>

#include "lib/format/torch_rank_files/rank_folder.h"

namespace tessera::rank_files {
namespace {

[[noreturn]] void corrupt(const std::string& what) { fail(Code::kCorrupt, what); }

bool is_object(const Value& value) { return value.kind() == Value::Kind::kOpaque; }

/// The class of an instance, the function of a call, or a global itself.
std::string_view object_name(const Value& value) {
  return is_object(value) ? std::string_view(value.as_opaque().name) : std::string_view();
}

bool is_sequence(const Value& value) {
  return value.kind() == Value::Kind::kList || value.kind() == Value::Kind::kTuple;
}

/// An attribute of an object's state: a dict, or (dict or None, slots).
const Value* attribute(const Value& object, std::string_view name) {
  if (!is_object(object) || !object.as_opaque().has_state) return nullptr;
  const Value& state = object.as_opaque().state;
  if (state.is_dict()) return state.find(name);
  if (!is_sequence(state) || state.as_list().size() != 2) return nullptr;
  for (const Value& half : state.as_list())
    if (const Value* found = half.find(name)) return found;
  return nullptr;
}
const Value& need(const Value& object, std::string_view name) {
  const Value* found = attribute(object, name);
  if (!found)
    fail(Code::kUnsupported,
         fmt::format("a pickled {} without \"{}\"", printable(object_name(object)), name));
  return *found;
}

std::vector<std::int64_t> integers(const Value& value, std::string_view what) {
  if (value.kind() == Value::Kind::kSize) return value.as_size();
  if (!is_sequence(value)) corrupt(fmt::format("{} that is no list of integers", what));
  std::vector<std::int64_t> out;
  for (const Value& item : value.as_list()) {
    if (!item.is_int()) corrupt(fmt::format("{} that is no list of integers", what));
    out.push_back(item.as_int());
  }
  return out;
}

const ArchiveTensor& local_tensor(const Value& value, const TorchArchive& archive) {
  if (!value.is_tensor())
    fail(Code::kUnsupported,
         fmt::format("a sharded tensor whose local part is a {}, not a plain tensor",
                     is_object(value) ? printable(object_name(value)) : "value"),
         "tensors sharded over two wrappers (before PyTorch 2.2) are not read");
  return archive.tensors.at(value.tensor_index());
}

/// The arguments of _rebuild_wrapper_subclass: dtype and size of the whole.
TensorSpec wrapper_spec(const ValueList& arguments) {
  if (arguments.size() < 3 || arguments[1].kind() != Value::Kind::kDType)
    corrupt("a tensor wrapper without dtype and size");
  return {arguments[1].as_dtype(), Shape::checked(integers(arguments[2], "a size"))};
}

void check_local(const ArchiveTensor& local, const TensorSpec& spec, const Shape& expected) {
  if (local.dtype != spec.dtype)
    corrupt(fmt::format("the local part is {}, the tensor {}", torch_name(local.dtype),
                        torch_name(spec.dtype)));
  if (local.shape != expected)
    corrupt(fmt::format("the local part has shape {}, its place in the tensor of {} has {}",
                        local.shape.to_string(), spec.shape.to_string(), expected.to_string()));
}

Box shard_box(const Value& metadata, const TensorSpec& spec) {
  const std::vector<std::int64_t> offsets =
      integers(need(metadata, "shard_offsets"), "shard offsets");
  const std::vector<std::int64_t> sizes = integers(need(metadata, "shard_sizes"), "shard sizes");
  Box box{offsets, Shape::checked(sizes)};
  const bool bounded = std::ranges::all_of(
      offsets, [](std::int64_t at) { return at >= 0 && at <= (std::int64_t{1} << 62); });
  if (offsets.size() != sizes.size() || box.rank() != spec.shape.rank() || !bounded)
    corrupt("shard offsets and sizes disagree with the tensor's shape");
  for (int d = 0; d < box.rank(); ++d)
    if (box.shape[d] > spec.shape[d] || box.begin(d) > spec.shape[d] - box.shape[d])
      corrupt(
          fmt::format("shard {} leaves the tensor of {}", box.to_string(), spec.shape.to_string()));
  return box;
}

/// The rank in a shard's placement, "rank:3/cuda:3".
std::optional<std::int64_t> placement_rank(const Value& metadata) {
  const Value* placement = attribute(metadata, "placement");
  const Value* rank = placement ? attribute(*placement, "_rank") : nullptr;
  return rank && rank->is_int() ? std::optional(rank->as_int()) : std::nullopt;
}

ShardedValue sharded_tensor(const Value& state, const TensorSpec& spec,
                            const TorchArchive& archive) {
  if (!is_sequence(state) || state.as_list().size() < 3 || !is_sequence(state.as_list()[0]))
    fail(Code::kUnsupported, "a ShardedTensor in a form that is not read");
  ShardedValue out;
  out.spec = spec;
  const ValueList& parts = state.as_list();
  for (const Value& shard : parts[0].as_list()) {
    const Value& tensor = need(shard, "tensor");
    Box box = shard_box(need(shard, "metadata"), spec);
    check_local(local_tensor(tensor, archive), spec, box.shape);
    out.pieces.push_back({Chunk::whole_of(std::move(box)), tensor.tensor_index(), 0});
  }
  if (const Value* shards = attribute(parts[1], "shards_metadata"); shards && is_sequence(*shards))
    for (const Value& shard : shards->as_list())
      if (const auto rank = placement_rank(shard))
        out.boxes.emplace_back(*rank, shard_box(shard, spec));
  const Value* world = attribute(parts[2], "global_world_size");
  if (world && world->is_int() && world->as_int() >= 1 && world->as_int() <= kMaxRank)
    out.world_size = world->as_int();
  const Value* rank = attribute(parts[2], "global_rank");
  if (rank && rank->is_int()) out.rank = rank->as_int();
  return out;
}

Placement placement_of(const Value& value) {
  const std::string_view name = object_name(value);
  if (name == "Replicate") return Placement::replicate();
  if (name == "Shard" || name == "_StridedShard" || name == "StridedShard") {
    const Value& dim = need(value, "dim");
    if (!dim.is_int() || dim.as_int() < 0 || dim.as_int() >= kMaxRank)
      corrupt("a placement without a dim");
    if (name == "Shard") return Placement::shard(static_cast<int>(dim.as_int()));
    const Value& factor = need(value, "split_factor");
    if (!factor.is_int() || factor.as_int() < 1) corrupt("a strided placement without a factor");
    return Placement::strided_shard(static_cast<int>(dim.as_int()), factor.as_int());
  }
  fail(Code::kUnsupported, fmt::format("placement {}", printable(name)),
       "a partial tensor must be reduced before it is saved");
}

/// Sizes of the mesh's dims: of its layout (2.10 and newer), or of its tensor of ranks.
std::vector<std::int64_t> mesh_sizes(const Value& mesh, const TorchArchive& archive) {
  if (const Value* layout = attribute(mesh, "_layout")) {
    std::vector<std::int64_t> sizes;
    const Value* axes = attribute(*layout, "axes");
    if (!axes) {
      const Value& shape = need(*layout, "shape");
      if (shape.is_int()) return {shape.as_int()};
      return integers(shape, "a mesh's shape");
    }
    if (!is_sequence(*axes)) corrupt("a mesh whose axes are no tuple");
    for (const Value& axis : axes->as_list()) {
      std::int64_t size = 1;
      for (const std::int64_t extent : integers(need(axis, "shape"), "a mesh axis")) {
        const auto product = checked_mul(size, extent);
        if (!product || extent < 1 || *product > kMaxRank) corrupt("a mesh of impossible size");
        size = *product;
      }
      sizes.push_back(size);
    }
    return sizes;
  }
  const Value* ranks = attribute(mesh, "mesh");
  if (!ranks) ranks = &need(mesh, "_mesh");
  const auto extents = local_tensor(*ranks, archive).shape.extents();
  return {extents.begin(), extents.end()};
}

std::vector<std::string> mesh_names(const Value& mesh, std::size_t dims) {
  std::vector<std::string> names;
  const Value* stored = attribute(mesh, "_mesh_dim_names");
  if (!stored) stored = attribute(mesh, "mesh_dim_names");
  for (std::size_t d = 0; d < dims; ++d) {
    const bool named = stored && is_sequence(*stored) && stored->as_list().size() == dims &&
                       stored->as_list()[d].is_string();
    names.push_back(named ? stored->as_list()[d].as_string() : fmt::format("dim_{}", d));
  }
  return names;
}

/// This rank's place in the mesh: as stored, else by row-major order; nullopt: it stands outside.
std::optional<std::int64_t> rank_in_mesh(const Value& value, const Mesh& mesh, std::int64_t rank) {
  const Value* stored = attribute(value, "_coordinate_on_dim");
  if (!stored) return rank % mesh.world_size();
  if (stored->is_none()) return std::nullopt;
  const std::vector<std::int64_t> at = integers(*stored, "a mesh coordinate");
  bool inside = at.size() == mesh.dims().size();
  for (std::size_t d = 0; inside && d < at.size(); ++d)
    inside = at[d] >= 0 && at[d] < mesh.dims()[d].size;
  if (!inside) corrupt("a mesh coordinate outside of the mesh");
  return mesh.rank_of(at);
}

ShardedValue dtensor(const Value& value, const TensorSpec& spec, const TorchArchive& archive,
                     std::int64_t rank) {
  const Value& description = need(value, "_spec");
  const Value& device_mesh = need(description, "mesh");
  const std::vector<std::int64_t> sizes = mesh_sizes(device_mesh, archive);
  const std::vector<std::string> names = mesh_names(device_mesh, sizes.size());
  std::vector<MeshDim> dims;
  std::int64_t world = 1;
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] < 1 || sizes[d] > kMaxRank / world) corrupt("a mesh of impossible size");
    world *= sizes[d];
    dims.push_back({names[d], sizes[d]});
  }
  const Value& stored = need(description, "placements");
  if (!is_sequence(stored)) corrupt("placements that are no tuple");
  std::vector<Placement> placements;
  for (const Value& placement : stored.as_list()) {
    placements.push_back(placement_of(placement));
    if (placements.back().kind != Placement::Kind::kReplicate &&
        placements.back().dim >= spec.shape.rank())
      corrupt(fmt::format("placement {} of a tensor of rank {}", placements.back().to_string(),
                          spec.shape.rank()));
  }
  if (placements.size() != dims.size()) corrupt("a mesh and placements of different lengths");
  ShardedValue out;
  out.spec = spec;
  const Mesh mesh(std::move(dims));
  out.layout = Layout(mesh, std::move(placements));
  out.world_size = world;
  const auto place = rank_in_mesh(device_mesh, mesh, rank);
  if (!place) return out;
  const Value& local = need(value, "_local_tensor");
  const ArchiveTensor& part = local_tensor(local, archive);
  const std::vector<Chunk> chunks = out.layout->chunks_of(*place, spec.shape);
  if (chunks.size() == 1) {
    check_local(part, spec, chunks[0].box.shape);
  } else if (std::ranges::any_of(chunks, [&](const Chunk& c) {
               return c.box.rank() == 0 || c.box.shape.inner_numel(0) != spec.shape.inner_numel(0);
             })) {
    fail(Code::kUnsupported, "an uneven strided placement of a dim that is not the first");
  }
  std::int64_t at = 0;
  for (const Chunk& chunk : chunks) {
    out.pieces.push_back({chunk, local.tensor_index(), at});
    at += chunk.numel();
  }
  if (part.dtype != spec.dtype || part.shape.numel() != at)
    corrupt(fmt::format("the local part is {} {}, its place holds {} elements of {}",
                        torch_name(part.dtype), part.shape.to_string(), at,
                        torch_name(spec.dtype)));
  return out;
}

/// nn.Parameter of a sharded tensor: (data, requires_grad, hooks).
std::optional<ShardedValue> parameter(const OpaqueObject& object, const TorchArchive& archive,
                                      std::int64_t rank) {
  const ValueList& arguments = object.arguments.as_list();
  if (arguments.empty()) return std::nullopt;
  auto out = parse_sharded(arguments[0], archive, rank);
  if (!out) return out;
  out->is_parameter = true;
  out->requires_grad =
      arguments.size() < 2 || arguments[1].kind() != Value::Kind::kBool || arguments[1].as_bool();
  return out;
}

}  // namespace

bool ShardedValue::is_split() const {
  if (!layout) return true;
  return std::ranges::any_of(layout->placements(), [](const Placement& p) {
    return p.kind != Placement::Kind::kReplicate;
  });
}

std::optional<ShardedValue> parse_sharded(const Value& value, const TorchArchive& archive,
                                          std::int64_t rank) {
  if (!is_object(value)) return std::nullopt;
  const OpaqueObject& object = value.as_opaque();
  if (object.how != OpaqueObject::How::kReduce || !is_sequence(object.arguments))
    return std::nullopt;
  if (object.module == "torch._utils" && object.name.starts_with("_rebuild_parameter"))
    return parameter(object, archive, rank);
  if (object.module != "torch._tensor" || !object.name.starts_with("_rebuild_from_type"))
    return std::nullopt;
  const ValueList& arguments = object.arguments.as_list();
  if (arguments.size() < 4 || object_name(arguments[0]) != "_rebuild_wrapper_subclass" ||
      !is_sequence(arguments[2]))
    return std::nullopt;
  const std::string_view type = object_name(arguments[1]);
  const ValueList& wrapper = arguments[2].as_list();
  if (type == "ShardedTensor") {
    ShardedValue out = sharded_tensor(arguments[3], wrapper_spec(wrapper), archive);
    if (wrapper.size() > 7 && wrapper[7].kind() == Value::Kind::kBool)
      out.wrapper_requires_grad = wrapper[7].as_bool();
    return out;
  }
  if (type != "DTensor") return std::nullopt;
  OpaqueObject with_state;  // its attributes, as any object's
  with_state.name = "DTensor";
  with_state.state = arguments[3];
  with_state.has_state = true;
  return dtensor(Value::opaque(std::move(with_state)), wrapper_spec(wrapper), archive, rank);
}

}  // namespace tessera::rank_files

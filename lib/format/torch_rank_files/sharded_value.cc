#include "lib/format/torch_rank_files/sharded_value.h"

#include <fmt/format.h>
#include <tessera/base/checked.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include <algorithm>

#include "lib/format/torch_rank_files/rank_folder.h"
#include "lib/state/fields.h"
#include "lib/state/tensor_wrapper.h"

namespace tessera::rank_files {
namespace {

[[noreturn]] void corrupt(const std::string& what) { fail(Code::kCorrupt, what); }

bool is_object(const Value& value) { return value.kind() == Value::Kind::kOpaque; }

/// The class of an instance, the function of a call, or a global itself.
std::string_view object_name(const Value& value) {
  return is_object(value) ? std::string_view(value.as_opaque().name) : std::string_view();
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
  return {arguments[1].as_dtype(), Field(arguments[2], {}, "size").shape()};
}

void check_local(const ArchiveTensor& local, const TensorSpec& spec, const Shape& expected) {
  if (local.dtype != spec.dtype)
    corrupt(fmt::format("the local part is {}, the tensor {}", torch_name(local.dtype),
                        torch_name(spec.dtype)));
  if (local.shape != expected)
    corrupt(fmt::format("the local part has shape {}, its place in the tensor of {} has {}",
                        local.shape.to_string(), spec.shape.to_string(), expected.to_string()));
}

Box shard_box(const Field& metadata, const TensorSpec& spec) {
  const std::vector<std::int64_t> offsets = metadata.at("shard_offsets").integers();
  Box box{offsets, metadata.at("shard_sizes").shape()};
  const bool bounded = std::ranges::all_of(
      offsets, [](std::int64_t at) { return at >= 0 && at <= (std::int64_t{1} << 62); });
  if (offsets.size() != static_cast<std::size_t>(box.shape.rank()) ||
      box.rank() != spec.shape.rank() || !bounded)
    corrupt("shard offsets and sizes disagree with the tensor's shape");
  for (int d = 0; d < box.rank(); ++d)
    if (box.shape[d] > spec.shape[d] || box.begin(d) > spec.shape[d] - box.shape[d])
      corrupt(
          fmt::format("shard {} leaves the tensor of {}", box.to_string(), spec.shape.to_string()));
  return box;
}

/// The rank in a shard's placement, "rank:3/cuda:3".
std::optional<std::int64_t> placement_rank(const Field& metadata) {
  const auto placement = metadata.find("placement");
  return placement ? integer_in(placement->value(), "_rank") : std::nullopt;
}

ShardedValue sharded_tensor(const Value& state, const TensorSpec& spec,
                            const TorchArchive& archive) {
  if (!is_sequence(state) || state.as_list().size() < 3 || !is_sequence(state.as_list()[0]))
    fail(Code::kUnsupported, "a ShardedTensor in a form that is not read");
  ShardedValue out;
  out.spec = spec;
  const std::vector<Field> parts = Field(state).items();
  for (const Field& shard : parts[0].items()) {
    const Value& tensor = shard.at("tensor").value();
    Box box = shard_box(shard.at("metadata"), spec);
    check_local(local_tensor(tensor, archive), spec, box.shape);
    out.pieces.push_back({Chunk::whole_of(std::move(box)), tensor.tensor_index(), 0});
  }
  if (const auto shards = parts[1].find("shards_metadata"); shards && is_sequence(shards->value()))
    for (const Field& shard : shards->items())
      if (const auto rank = placement_rank(shard))
        out.boxes.emplace_back(*rank, shard_box(shard, spec));
  const auto world = integer_in(parts[2].value(), "global_world_size");
  if (world && *world >= 1 && *world <= kMaxRank) out.world_size = *world;
  if (const auto rank = integer_in(parts[2].value(), "global_rank")) out.rank = *rank;
  return out;
}

Placement placement_of(const Field& field) {
  const std::string_view name = object_name(field.value());
  if (name == "Replicate") return Placement::replicate();
  if (name == "Shard" || name == "_StridedShard" || name == "StridedShard") {
    const Field dim = field.at("dim");
    if (dim.count() >= kMaxRank) dim.refuse("a dim");
    if (name == "Shard") return Placement::shard(static_cast<int>(dim.count()));
    const Field factor = field.at("split_factor");
    if (factor.integer() < 1) factor.refuse("a positive factor");
    return Placement::strided_shard(static_cast<int>(dim.count()), factor.integer());
  }
  fail(Code::kUnsupported, fmt::format("placement {}", printable(name)),
       "a partial tensor must be reduced before it is saved");
}

/// Sizes of the mesh's dims: of its layout (2.10 and newer), or of its tensor of ranks.
std::vector<std::int64_t> mesh_sizes(const Field& mesh, const TorchArchive& archive) {
  if (const auto layout = mesh.find("_layout")) {
    std::vector<std::int64_t> sizes;
    const auto axes = layout->find("axes");
    if (!axes) {
      const Field shape = layout->at("shape");
      return shape.value().is_int() ? std::vector{shape.integer()} : shape.integers();
    }
    for (const Field& axis : axes->items()) {
      std::int64_t size = 1;
      for (const std::int64_t extent : axis.at("shape").integers()) {
        const auto product = checked_mul(size, extent);
        if (!product || extent < 1 || *product > kMaxRank) corrupt("a mesh of impossible size");
        size = *product;
      }
      sizes.push_back(size);
    }
    return sizes;
  }
  const auto ranks = mesh.find("mesh");
  const auto extents =
      local_tensor((ranks ? *ranks : mesh.at("_mesh")).value(), archive).shape.extents();
  return {extents.begin(), extents.end()};
}

std::vector<std::string> mesh_names(const Value& mesh, std::size_t dims) {
  const Value* stored = member(mesh, "_mesh_dim_names");
  if (!stored) stored = member(mesh, "mesh_dim_names");
  std::vector<std::string> names;
  for (std::size_t d = 0; d < dims; ++d) {
    const bool named = stored && is_sequence(*stored) && stored->as_list().size() == dims &&
                       stored->as_list()[d].is_string();
    names.push_back(named ? stored->as_list()[d].as_string() : fmt::format("dim_{}", d));
  }
  return names;
}

/// This rank's place in the mesh: as stored, else by row-major order; nullopt: it stands outside.
std::optional<std::int64_t> rank_in_mesh(const Field& value, const Mesh& mesh, std::int64_t rank) {
  const auto stored = value.find("_coordinate_on_dim");
  if (!stored) return rank % mesh.world_size();
  if (stored->value().is_none()) return std::nullopt;
  const std::vector<std::int64_t> at = stored->integers();
  bool inside = at.size() == mesh.dims().size();
  for (std::size_t d = 0; inside && d < at.size(); ++d)
    inside = at[d] >= 0 && at[d] < mesh.dims()[d].size;
  if (!inside) stored->refuse("a coordinate inside of the mesh");
  return mesh.rank_of(at);
}

/// How it is cut, without its pieces. `place`: where `rank` stands in its mesh.
ShardedValue dtensor_layout(const Field& value, const TensorSpec& spec, const TorchArchive& archive,
                            std::int64_t rank, std::optional<std::int64_t>& place) {
  const Field description = value.at("_spec"), device_mesh = description.at("mesh");
  const std::vector<std::int64_t> sizes = mesh_sizes(device_mesh, archive);
  const std::vector<std::string> names = mesh_names(device_mesh.value(), sizes.size());
  std::vector<MeshDim> dims;
  std::int64_t world = 1;
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] < 1 || sizes[d] > kMaxRank / world) corrupt("a mesh of impossible size");
    world *= sizes[d];
    dims.push_back({names[d], sizes[d]});
  }
  std::vector<Placement> placements;
  for (const Field& placement : description.at("placements").items()) {
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
  place = rank_in_mesh(device_mesh, mesh, rank);
  return out;
}

ShardedValue dtensor(const Field& value, const TensorSpec& spec, const TorchArchive& archive,
                     std::int64_t rank) {
  std::optional<std::int64_t> place;
  ShardedValue out = dtensor_layout(value, spec, archive, rank, place);
  if (!place) return out;
  const Value& local = value.at("_local_tensor").value();
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

/// Codes, scales and tables of one rank's part, in its own blocks: a value of that rank.
bool is_packed(const Value& local) {
  const std::string name = wrapper_class(local);
  return !wrapper_parts(local).empty() && !name.ends_with(".DTensor") &&
         !name.ends_with(".ShardedTensor");
}

/// Its attributes, as any object's.
Value dtensor_object(const Value& state) {
  OpaqueObject with_state;
  with_state.module = "torch.distributed.tensor";
  with_state.name = "DTensor";
  with_state.state = state;
  with_state.has_state = true;
  return Value::opaque(std::move(with_state));
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
  const Value object_of_type = dtensor_object(arguments[3]);
  if (const Value* local = member(object_of_type, "_local_tensor"); local && is_packed(*local))
    return std::nullopt;
  return dtensor(Field(object_of_type), wrapper_spec(wrapper), archive, rank);
}

std::optional<PackedRows> parse_packed(const Value& value, const TorchArchive& archive,
                                       std::int64_t rank) {
  const auto spec = tessera::wrapper_spec(value);
  if (!spec || spec->shape.rank() == 0 || !wrapper_class(value).ends_with(".DTensor"))
    return std::nullopt;
  const Value object = dtensor_object(value.as_opaque().arguments.as_list()[3]);
  const Value* local = member(object, "_local_tensor");
  if (local == nullptr || !is_packed(*local)) return std::nullopt;
  std::optional<std::int64_t> place;
  const ShardedValue whole = dtensor_layout(Field(object), *spec, archive, rank, place);
  if (!place) return std::nullopt;
  const std::vector<Chunk> chunks = whole.layout->chunks_of(*place, spec->shape);
  if (chunks.size() != 1 || !chunks[0].is_whole_box()) return std::nullopt;
  const Box& box = chunks[0].box;
  if (box.shape.inner_numel(0) != spec->shape.inner_numel(0)) return std::nullopt;
  return PackedRows{*spec, {box.begin(0), box.begin(0) + box.shape[0]}, *local};
}

}  // namespace tessera::rank_files

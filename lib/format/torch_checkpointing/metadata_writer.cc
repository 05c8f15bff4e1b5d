#include "lib/format/torch_checkpointing/metadata_writer.h"

#include <tessera/base/error.h>
#include <tessera/encoding/json.h>
#include <tessera/encoding/pickle_writer.h>

#include <map>
#include <numeric>
#include <utility>

#include "lib/encoding/torch_pickle.h"

namespace tessera::checkpointing {
namespace {

using rank_files::ItemTensor;

Value text(std::string value) { return Value::string(std::move(value)); }

Value dict(std::vector<std::pair<std::string, Value>> fields) {
  ValueDict out;
  for (auto& [key, value] : fields) out.emplace_back(text(std::move(key)), std::move(value));
  return Value::dict(std::move(out));
}
template <class Numbers>
Value numbers(const Numbers& values, Value::Kind kind) {
  ValueList items;
  for (const std::int64_t value : values) items.push_back(Value::integer(value));
  return Value::list(std::move(items), kind);
}
std::vector<std::int64_t> first_ranks(std::int64_t count) {
  std::vector<std::int64_t> out(static_cast<std::size_t>(count));
  std::iota(out.begin(), out.end(), 0);
  return out;
}

Value placement_value(const Placement& placement) {
  if (placement.kind == Placement::Kind::kReplicate) return dict({{"type", text("Replicate")}});
  const Value dim = Value::integer(placement.dim);
  if (placement.kind == Placement::Kind::kShard)
    return dict({{"type", text("Shard")}, {"dim", dim}});
  return dict({{"type", text("StridedShard")},
               {"dim", dim},
               {"split_factor", Value::integer(placement.split_factor)}});
}

class MetadataMaker {
 public:
  MetadataMaker(const Mesh& mesh, const MetadataForm& form)
      : form_(form),
        world_size_(mesh.world_size()),
        ranks_(numbers(first_ranks(world_size_), Value::Kind::kTuple)),
        mesh_(mesh_value(mesh, form.named_dims)),
        world_mesh_(mesh_value(Mesh::one_dim(world_size_), false)) {}

  void add(const ItemTensor& tensor) {
    ValueList parts;
    if (form_.version_1) parts.push_back(text(tensor.item));
    for (const PathItem& item : tensor.path)
      parts.push_back(item.kind == PathItem::Kind::kKey ? text(std::string(item.key))
                                                        : Value::integer(item.index));
    paths_[tensor.item].emplace_back(text(dump_json(Value::list(std::move(parts)))),
                                     groups(tensor));
  }

  Value finish() {
    const Value world = Value::integer(world_size_);
    if (!form_.version_1)
      return dict({{"metadata", items()}, {"world_size", world}, {"version", text("2.0")}});
    ValueDict all;
    for (auto& [item, paths] : paths_)
      for (auto& path : paths) all.push_back(std::move(path));
    return dict({{"metadata", Value::dict(std::move(all))},
                 {"rank_to_layout_info_mappings", default_layouts()},
                 {"world_size", world},
                 {"version", text("1.0")}});
  }

 private:
  /// Every rank's file is <item>_<rank>.pt.
  Value items() {
    ValueDict none;
    for (std::int64_t rank = 0; rank < world_size_; ++rank)
      none.emplace_back(Value::integer(rank), Value());
    const Value layouts = Value::dict(std::move(none));
    std::vector<std::pair<std::string, Value>> out;
    for (auto& [item, paths] : paths_)
      out.emplace_back(item, dict({{"nested_path_to_metadata", Value::dict(std::move(paths))},
                                   {"rank_to_layout_info", layouts}}));
    return dict(std::move(out));
  }
  Value default_layouts() const {
    std::vector<std::pair<std::string, Value>> none;
    for (const auto& [item, paths] : paths_) none.emplace_back(item, Value());
    const Value items = dict(std::move(none));
    ValueDict out;
    for (std::int64_t rank = 0; rank < world_size_; ++rank)
      out.emplace_back(Value::integer(rank), items);
    return Value::dict(std::move(out));
  }

  Value mesh_value(const Mesh& mesh, bool named) const {
    std::vector<std::int64_t> sizes;
    ValueList names;
    for (const MeshDim& dim : mesh.dims()) {
      sizes.push_back(dim.size);
      names.push_back(text(dim.name));
    }
    return dict(
        {{"device_type", text(form_.device_type)},
         {"mesh_shape", numbers(sizes, Value::Kind::kTuple)},
         {"mesh_data", ranks_},
         {"mesh_dim_names", named ? Value::list(std::move(names), Value::Kind::kTuple) : Value()}});
  }

  Value groups(const ItemTensor& tensor) {
    ValueList placements;
    for (const Placement& placement : tensor.placements)
      placements.push_back(placement_value(placement));
    const bool plain = placements.empty();
    if (plain) placements.push_back(placement_value(Placement::replicate()));
    const Shape& shape = tensor.spec.shape;
    Value data = dict({{"global_shape", numbers(shape.extents(), Value::Kind::kList)},
                       {"dtype", text("torch." + std::string(torch_name(tensor.spec.dtype)))},
                       {"stride", numbers(contiguous_strides(shape), Value::Kind::kList)},
                       {"mesh_spec", plain ? world_mesh_ : mesh_},
                       {"placements", Value::list(std::move(placements))}});
    return Value::list({dict({{"sharding_metadata", dict({{"type", text("DTensorShardingMetadata")},
                                                          {"data", std::move(data)}})},
                              {"ranks", ranks_}})});
  }

  MetadataForm form_;
  std::int64_t world_size_;
  Value ranks_;
  Value mesh_;
  Value world_mesh_;
  std::map<std::string, ValueDict> paths_;  // by item
};

}  // namespace

std::string metadata_text(const Mesh& mesh, std::span<const ItemTensor> tensors,
                          const MetadataForm& form) {
  MetadataMaker maker(mesh, form);
  for (const ItemTensor& tensor : tensors) maker.add(tensor);
  PickleEmitter emitter;
  write_value(emitter, maker.finish(),
              [](PickleEmitter&, std::uint32_t) { fail(Code::kInternal, "a tensor in metadata"); });
  const Bytes bytes = emitter.finish();
  return std::string(as_text(bytes));
}

}  // namespace tessera::checkpointing

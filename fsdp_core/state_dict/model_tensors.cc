#include "fsdp_core/state_dict/model_tensors.h"

#include <ATen/ATen.h>
#include <tessera/base/error.h>
#include <tessera/fsdp/extension.h>
#include <tessera/layout/layout.h>

#include <numeric>

#include "fsdp_core/params/registry.h"
#include "fsdp_core/runtime/units_of.h"

namespace tessera::fsdp {
namespace {

struct Owned {
  std::shared_ptr<detail::Unit> unit;
  const ParamGroup* group;
  std::size_t index;
};

/// What the shard of parameter `p` is of the whole.
Chunk chunk_of(const UnitLayout& layout, std::size_t p, const Shape& shape) {
  const UnitLayout::ShardPlace& place = layout.shard(p);
  if (layout.in_place()) return {Box::whole(shape), place.begin, place.begin + place.numel};
  return Chunk::whole_of(chunk_box(shape, place.dim, layout.shards(), layout.rank()));
}

/// Whether ranks outside the shard group hold the same shards.
bool has_replicas(const UnitGroups& comms) {
  return comms.replicas() > 1 || (comms.mesh && comms.mesh->ndim() > 1);
}

/// Places a parameter that is itself a part of a larger tensor, or that is the same on all ranks of
/// the unit's extension.
void place_by_extension(ModelTensor& entry, detail::Unit& unit, const Param& param) {
  entry.origin.assign(param.sizes.size(), 0);
  entry.replicated = false;
  const std::optional<DeviceMesh> mesh =
      unit.options().extension ? unit.options().extension->mesh() : std::nullopt;
  if (!mesh) return;
  if (!param.extension_dim) {
    entry.replicated = entry.same_across_extension = mesh->size(0) > 1;
    return;
  }
  const auto dim = static_cast<std::size_t>(*param.extension_dim);
  std::vector<std::int64_t> whole = param.sizes;
  whole[dim] *= mesh->size(0);
  entry.shape = Shape(whole);
  entry.origin[dim] = mesh->coordinate(0) * param.sizes[dim];
  entry.chunk.box = entry.chunk.box.translated(entry.origin);
}

class Walk {
 public:
  explicit Walk(ModelTensors& out) : out_(out) {
    for (const auto& unit : out.units) {
      for (const auto& group : unit->groups())
        for (std::size_t p = 0; p < group->params().size(); ++p) {
          const Owned owned{unit, group.get(), p};
          owned_.emplace(group->params()[p].shard.unsafeGetTensorImpl(), owned);
          owned_.emplace(group->params()[p].compute.unsafeGetTensorImpl(), owned);
        }
      for (const auto& [buffer, dtype] : unit->buffers())
        buffer_dtypes_.emplace(buffer.unsafeGetTensorImpl(), dtype);
    }
  }

  void module(torch::nn::Module& module, const std::string& prefix) {
    for (const auto& item : Registry::parameters(module))
      if (item.value().defined()) parameter(prefix + item.key(), item.value());
    for (const auto& item : module.named_buffers(/*recurse=*/false))
      if (item.value().defined()) buffer(prefix + item.key(), item.value());
    for (const auto& child : module.named_children())
      this->module(*child.value(), prefix + child.key() + ".");
  }

 private:
  void parameter(std::string fqn, const at::Tensor& registered) {
    ModelTensor entry = whole(std::move(fqn), registered);
    entry.is_parameter = true;
    if (const auto found = owned_.find(registered.unsafeGetTensorImpl()); found != owned_.end()) {
      const Owned& owned = found->second;
      const Param& param = owned.group->params()[owned.index];
      entry.local = param.shard;
      entry.shape = Shape(param.sizes);
      entry.chunk = chunk_of(owned.group->layout(), owned.index, entry.shape);
      place_by_extension(entry, *owned.unit, param);
      entry.dtype = param.shard.scalar_type();
      entry.replicated |= owned.group->layout().shards() == 1 || has_replicas(owned.group->comms());
      entry.unit = owned.unit;
      entry.group = owned.group;
      entry.index = owned.index;
    }
    const auto [first, added] =
        out_.by_parameter.try_emplace(entry.local.unsafeGetTensorImpl(), out_.tensors.size());
    if (!added) entry.tied_to = first->second;
    out_.tensors.push_back(std::move(entry));
  }

  void buffer(std::string fqn, const at::Tensor& tensor) {
    ModelTensor entry = whole(std::move(fqn), tensor);
    if (const auto found = buffer_dtypes_.find(tensor.unsafeGetTensorImpl());
        found != buffer_dtypes_.end())
      entry.dtype = found->second;
    const auto [first, added] =
        buffers_.try_emplace(tensor.unsafeGetTensorImpl(), out_.tensors.size());
    if (!added) entry.tied_to = first->second;
    out_.tensors.push_back(std::move(entry));
  }

  static ModelTensor whole(std::string fqn, const at::Tensor& tensor) {
    if (tensor.layout() != at::kStrided)
      fail(Code::kUnsupported, "\"" + fqn + "\" is no dense tensor");
    ModelTensor entry;
    entry.fqn = std::move(fqn);
    entry.local = tensor;
    entry.shape = Shape(tensor.sizes().vec());
    entry.chunk = Chunk::whole_of(Box::whole(entry.shape));
    entry.dtype = tensor.scalar_type();
    return entry;
  }

  ModelTensors& out_;
  std::unordered_map<const c10::TensorImpl*, Owned> owned_;
  std::unordered_map<const c10::TensorImpl*, at::ScalarType> buffer_dtypes_;
  std::unordered_map<const c10::TensorImpl*, std::size_t> buffers_;
};

}  // namespace

void place_in_whole(LiveTensor& live, const ModelTensor& tensor) {
  live.spec.shape = tensor.shape;
  for (LivePiece& piece : live.pieces) piece.chunk.box = piece.chunk.box.translated(tensor.origin);
}

ModelTensors model_tensors(const ModuleRef& model) {
  ModelTensors out;
  for (const auto& [fqn, unit] : named_units(*model)) out.unit_fqns.push_back(fqn);
  if (!out.unit_fqns.empty()) out.units = idle_units_of(model, "state_dict");
  for (const auto& unit : out.units) unit->root()->order().raise_mismatch(/*wait=*/true);
  Walk(out).module(*model, "");
  return out;
}

}  // namespace tessera::fsdp

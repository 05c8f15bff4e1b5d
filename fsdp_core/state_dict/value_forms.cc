#include <tessera/fsdp/extension.h>
#include <tessera/fsdp/state_dict.h>

#include <optional>
#include <set>

#include "fsdp_core/state_dict/flat_parameters.h"
#include "fsdp_core/state_dict/model_tensors.h"
#include "fsdp_core/state_dict/state_type.h"
#include "fsdp_core/state_dict/transformed.h"

namespace tessera::fsdp {
namespace {

/// How a tensor that is no part of a transformed parameter is cut over the ranks.
Placement cut_of(const ModelTensor& tensor, const StateDictOptions& options) {
  if (!tensor.unit) return Placement::replicate();
  const UnitLayout& layout = tensor.group->layout();
  if (!options.even_chunks)
    return layout.in_place() ? Placement::flat() : Placement::shard(layout.shard(tensor.index).dim);
  return tensor.shape.rank() == 0 ? Placement::replicate() : Placement::shard(0);
}

/// `cut`: on the mesh dim that the parameter's group shards over.
ValueForm form_of(const ModelTensor& tensor, const StateDictOptions& options, Placement cut) {
  ValueForm form{tensor.fqn, ValueKind::kPlain, {}, {}};
  if (!tensor.unit || options.type == StateDictType::kFull) return form;
  const UnitGroups& comms = tensor.group->comms();
  const auto& mesh = comms.mesh;
  if (!mesh) {
    if (tensor.group->layout().shards() > 1) form.kind = ValueKind::kShardedTensor;
    return form;
  }
  form.kind = ValueKind::kDTensor;
  form.mesh = mesh->mesh();
  form.placements.assign(static_cast<std::size_t>(mesh->ndim()), Placement::replicate());
  if (const std::optional<int> dim = comms.strategy->shard_dim)
    form.placements[static_cast<std::size_t>(*dim)] = cut;
  const auto& extension = tensor.unit->options().extension;
  if (const auto beside = extension ? extension->mesh() : std::nullopt) {
    // Cut first over the extension's ranks, then over the unit's: rows of rows are strided.
    const std::optional<int> dim = tensor.group->params()[tensor.index].extension_dim;
    const std::int64_t parts = beside->size(0);
    for (Placement& placement : form.placements)
      if (dim && placement == Placement::shard(*dim) && parts > 1)
        placement = Placement::strided_shard(*dim, parts);
    std::vector<MeshDim> all = form.mesh.dims();
    all.push_back(beside->mesh().dims().front());
    form.mesh = Mesh(std::move(all));
    form.placements.push_back(dim ? Placement::shard(*dim) : Placement::replicate());
  }
  return form;
}

}  // namespace

std::string_view value_kind_name(ValueKind kind) {
  switch (kind) {
    case ValueKind::kPlain:
      return "tensor";
    case ValueKind::kShardedTensor:
      return "ShardedTensor";
    case ValueKind::kDTensor:
      return "DTensor";
  }
  return "?";
}

std::vector<ValueForm> value_forms(const ModuleRef& model, const StateDictOptions& options) {
  check_state_type(model, /*with_optimizer=*/false, options);
  std::vector<ValueForm> out;
  const ModelTensors tensors = model_tensors(model);
  std::set<std::string> flat;
  for (const ModelTensor& tensor : tensors.tensors) {
    if (options.type == StateDictType::kLocal && tensor.unit) {
      const std::string name = flat_name(tensors, tensor);
      if (!flat.insert(name).second) continue;  // of a parameter before
      out.push_back(form_of(tensor, options, Placement::shard(0)));
      out.back().fqn = name;
    } else if (!is_transformed(tensor)) {
      out.push_back(form_of(tensor, options, cut_of(tensor, options)));
    } else {
      for (const PartOf& part : parts_like(tensor)) {
        const bool cut = options.type == StateDictType::kSharded && tensor.unit->options().mesh;
        out.push_back(
            form_of(tensor, options, cut ? placement_of(tensor, part) : Placement::replicate()));
        out.back().fqn = part.fqn;
      }
    }
  }
  return out;
}

}  // namespace tessera::fsdp

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/fsdp/extension.h>
#include <tessera/fsdp/state_dict.h>

#include <algorithm>
#include <map>
#include <optional>
#include <span>
#include <sstream>
#include <unordered_set>

#include "fsdp_core/bridge/dtype.h"
#include "fsdp_core/bridge/live_memory.h"
#include "fsdp_core/state_dict/model_tensors.h"
#include "fsdp_core/state_dict/optimizer_dict.h"

namespace tessera::fsdp {
namespace {

/// What the callbacks of one live state share.
struct Session {
  std::shared_ptr<torch::nn::Module> keep_alive;
  ModelTensors model;
  LiveMemory memory;
  bool full = false;
  bool first_only = false;
  std::vector<std::string> names;  // of model.tensors, in the state
  std::unique_ptr<OptimizerDict> optimizer;
  std::map<std::string, const ParamGroup*> flat;  // kLocal
};

StateForm form_of_state(const StateDictOptions& options) {
  if (options.type != StateDictType::kFull) return StateForm::kShards;
  return options.rank0_only ? StateForm::kWholeOnFirstRank : StateForm::kWhole;
}

Path model_path(const StateDictOptions& options, const std::string& fqn) {
  if (options.model_root.empty()) return {key_item(fqn)};
  return {key_item(options.model_root), key_item(fqn)};
}

/// One tensor of the model in the form that was asked for. Nullopt: nothing of it is here.
std::optional<LiveTensor> live_tensor(Session& session, const ModelTensor& tensor,
                                      const std::string& name, const StateDictOptions& options) {
  if (options.type == StateDictType::kFull && tensor.unit) {
    Spread spread = Spread::of(tensor.unit, *tensor.group, tensor.index);
    spread.first_only = options.rank0_only;
    const bool here = spread.here();
    LiveTensor live = session.memory.whole(name, tensor.local, std::move(spread), true);
    place_in_whole(live, tensor);
    if (!here) return std::nullopt;
    return live;
  }
  LiveTensor live =
      session.memory.piece(name, tensor.local, tensor.dtype, tensor.shape, tensor.chunk);
  live.replicated = tensor.replicated;
  return live;
}

void add_model(Session& session, LiveState& state, const StateDictOptions& options) {
  for (const ModelTensor& tensor : session.model.tensors) {
    const Path path = model_path(options, tensor.fqn);
    session.names.push_back(dotted(path));
    std::optional<LiveTensor> live = live_tensor(session, tensor, session.names.back(), options);
    if (!live) continue;
    live->is_parameter = tensor.is_parameter;
    state.add_tensor(path, std::move(*live));
  }
}

/// What a unit's flat parameter is called: one per dtype and requires_grad.
std::string flat_name(const ModelTensors& model, const ModelTensor& tensor) {
  const auto at = std::ranges::find(model.units, tensor.unit);
  const std::string& fqn = model.unit_fqns[static_cast<std::size_t>(at - model.units.begin())];
  const auto& groups = tensor.unit->groups();
  const auto group =
      std::ranges::find_if(groups, [&](const auto& each) { return each.get() == tensor.group; });
  const auto number = group - groups.begin();
  return (fqn.empty() ? "" : fqn + ".") + "_flat_param" +
         (number == 0 ? "" : fmt::format("_{}", number));
}

LiveTensor flat_parameter(Session& session, const ModelTensor& tensor, const std::string& name) {
  const ParamGroup& group = *tensor.group;
  const UnitLayout& layout = group.layout();
  const std::size_t last = layout.parameters() - 1;
  const std::int64_t total = layout.full(last).offset + Shape(group.params()[last].sizes).numel();
  const std::int64_t begin = std::min(layout.rank() * layout.shard_numel(), total);
  const std::int64_t numel = std::min(layout.shard_numel(), total - begin);
  LiveTensor live =
      session.memory.piece(name, group.shard_buffer().narrow(0, 0, numel), group.dtypes().stored,
                           Shape({total}), Chunk::whole_of({{begin}, Shape({numel})}));
  live.replicated = tensor.replicated;
  live.is_parameter = true;
  return live;
}

void add_local(Session& session, LiveState& state, const StateDictOptions& options) {
  for (const auto& unit : session.model.units)
    for (const auto& group : unit->groups()) group->adopt_replaced();
  for (const ModelTensor& tensor : session.model.tensors) {
    const std::string fqn = tensor.unit ? flat_name(session.model, tensor) : tensor.fqn;
    const Path path = model_path(options, fqn);
    std::string name = dotted(path);
    if (tensor.unit && !session.flat.emplace(name, tensor.group).second) continue;
    if (tensor.unit) {
      state.add_tensor(path, flat_parameter(session, tensor, name));
    } else {
      LiveTensor live = session.memory.piece(name, tensor.local, tensor.dtype, tensor.shape,
                                             tensor.chunk, tensor.tied_to.has_value());
      live.replicated = true;
      state.add_tensor(path, std::move(live));
    }
  }
}

/// Shard parameters have version counters of their own.
void moved(const std::map<std::string, const ParamGroup*>& flat,
           const std::unordered_set<std::string>& loaded) {
  for (const auto& [name, group] : flat)
    if (loaded.contains(name))
      for (const Param& param : group->params()) param.shard.unsafeGetTensorImpl()->bump_version();
}

/// A checkpoint may hold a tied parameter under one of its names alone, which is enough; what it
/// holds under further names is read apart and compared.
void expect_ties(Session& session, LiveState& state, const Manifest& stored) {
  const std::vector<ModelTensor>& tensors = session.model.tensors;
  std::unordered_set<std::string> there;
  for (const StateEntry& entry : stored.state.entries)
    if (entry.value.is_tensor()) there.insert(entry.name);
  std::vector<std::string> found(session.names.size());  // by first name: the one that is read
  for (std::size_t t = 0; t < session.names.size(); ++t)
    if (std::string& name = found[tensors[t].tied_to.value_or(t)];
        name.empty() && there.contains(session.names[t]))
      name = session.names[t];
  std::unordered_set<std::string> dropped;
  std::unordered_map<std::string, std::size_t> compared;
  for (std::size_t t = 0; t < session.names.size(); ++t) {
    const std::string& name = found[tensors[t].tied_to.value_or(t)];
    if (name.empty() || name == session.names[t]) continue;
    if (there.contains(session.names[t]))
      compared.emplace(session.names[t], t);
    else
      dropped.insert(session.names[t]);
  }
  std::erase_if(state.dict.entries,
                [&](const StateEntry& entry) { return dropped.contains(entry.name); });
  for (const StateEntry& entry : state.dict.entries) {
    const auto second = compared.find(entry.name);
    if (second == compared.end() || (tensors[second->second].unit && session.full)) continue;
    const ModelTensor& tensor = tensors[second->second];
    LiveTensor& live = state.tensors[entry.value.tensor_index()];
    const bool replicated = live.replicated;
    live = session.memory.second_name(entry.name, found[*tensor.tied_to], tensor.local,
                                      tensor.dtype, tensor.shape, tensor.chunk);
    live.replicated = replicated;
  }
}

/// Where values are whole on the first rank alone, the others hear from it what came.
std::unordered_set<std::string> agreed_names(const Session& session,
                                             const std::vector<std::string>& loaded) {
  std::unordered_set<std::string> names(loaded.begin(), loaded.end());
  if (!session.first_only || session.model.units.empty()) return names;
  UnitGroups& comms = session.model.units.back()->comms();
  for (const std::shared_ptr<Communicator>& comm : {comms.shard, comms.replicate}) {
    if (comm->size() == 1) continue;
    std::string mine;
    for (const std::string& name : names) mine += name + '\0';
    for (const auto& bytes : comm->all_gather_bytes(std::as_bytes(std::span(mine)),
                                                    {"state dict", CommPhase::kCheck})) {
      std::string theirs(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      std::istringstream in(theirs);
      for (std::string name; std::getline(in, name, '\0');) names.insert(name);
    }
  }
  return names;
}

LiveState make_state(const ModuleRef& model, torch::optim::Optimizer* optimizer,
                     const StateDictOptions& options) {
  auto session = std::make_shared<Session>();
  session->keep_alive = model.ptr();
  session->model = model_tensors(model);
  session->full = options.type == StateDictType::kFull;
  session->first_only = options.rank0_only;
  LiveState state;
  if (options.type == StateDictType::kLocal)
    add_local(*session, state, options);
  else
    add_model(*session, state, options);
  if (optimizer != nullptr) {
    session->optimizer = std::make_unique<OptimizerDict>(
        *optimizer, session->model, options.optim_root, form_of_state(options));
    session->optimizer->declare(state);
  }
  state.before_save = [session] {
    session->memory.refresh();
    if (session->optimizer) session->optimizer->refresh();
  };
  state.materialise = [session](LiveState& mine, const Manifest& stored) {
    expect_ties(*session, mine, stored);
    if (session->optimizer) session->optimizer->expect(mine, stored);
  };
  state.check_value = [session](const StateEntry& stored) {
    if (session->optimizer) session->optimizer->check(stored);
  };
  state.after_load = [session](const std::vector<std::string>& loaded) {
    const std::unordered_set<std::string> names = agreed_names(*session, loaded);
    session->memory.write_back(names);
    moved(session->flat, names);
    if (session->optimizer) session->optimizer->commit(names);
  };
  return state;
}

void check_type(const ModuleRef& model, torch::optim::Optimizer* optimizer,
                const StateDictOptions& options) {
  if (optimizer != nullptr && options.model_root == options.optim_root)
    fail(Code::kInvalidArgument,
         fmt::format("state_dict: model_root and optim_root are both \"{}\"", options.model_root));
  if (optimizer != nullptr && options.optim_root.empty())
    fail(Code::kInvalidArgument, "state_dict: optim_root is empty");
  if (options.rank0_only && options.type != StateDictType::kFull)
    fail(Code::kInvalidArgument,
         fmt::format("state_dict: rank0_only with {}", state_dict_type_name(options.type)),
         "it goes with StateDictType::kFull");
  if (options.type != StateDictType::kLocal) return;
  if (optimizer != nullptr)
    fail(Code::kUnsupported, "state_dict: LOCAL has no form for optimizer state",
         "use StateDictType::kSharded");
  for (const auto& unit : model_tensors(model).units) {
    if (unit->options().extension)
      fail(Code::kUnsupported,
           fmt::format("state_dict: LOCAL of {}, whose parameters are parts of larger tensors",
                       unit->label()),
           "use StateDictType::kSharded");
    if (unit->options().mesh)
      fail(Code::kInvalidArgument,
           fmt::format("state_dict: LOCAL with a mesh ({}): a flat parameter has no form on it",
                       unit->label()),
           "use StateDictType::kSharded");
    if (unit->options().layout != MemoryLayout::kFlat)
      fail(Code::kUnsupported,
           fmt::format("state_dict: LOCAL of {}, which has no flat parameter", unit->label()),
           "use StateDictType::kSharded");
  }
}

ValueForm form_of(const ModelTensor& tensor, const StateDictOptions& options) {
  ValueForm form{tensor.fqn, ValueKind::kPlain, {}, {}};
  if (!tensor.unit || options.type == StateDictType::kFull) return form;
  const UnitLayout& layout = tensor.group->layout();
  const Placement cut = layout.in_place() ? Placement::flat() : Placement::shard(0);
  const auto& mesh = tensor.unit->options().mesh;
  if (!mesh) {
    if (layout.shards() > 1) form.kind = ValueKind::kShardedTensor;
    return form;
  }
  form.kind = ValueKind::kDTensor;
  form.mesh = mesh->mesh();
  form.placements.assign(static_cast<std::size_t>(mesh->ndim()), Placement::replicate());
  const ShardingStrategy strategy = tensor.unit->options().strategy;
  if (strategy != ShardingStrategy::kNoShard) form.placements[is_hybrid(strategy) ? 1 : 0] = cut;
  if (const auto& extension = tensor.unit->options().extension) {
    // Cut first over the extension's ranks, then over the unit's: rows of rows are strided.
    const std::optional<int> dim = tensor.group->params()[tensor.index].extension_dim;
    const std::int64_t parts = extension->mesh().size(0);
    for (Placement& placement : form.placements)
      if (placement == Placement::shard(0) && dim == 0 && parts > 1)
        placement = Placement::strided_shard(0, parts);
    std::vector<MeshDim> dims = form.mesh.dims();
    dims.push_back(extension->mesh().mesh().dims().front());
    form.mesh = Mesh(std::move(dims));
    form.placements.push_back(dim ? Placement::shard(*dim) : Placement::replicate());
  }
  return form;
}

}  // namespace

std::string_view state_dict_type_name(StateDictType type) {
  switch (type) {
    case StateDictType::kSharded:
      return "SHARDED";
    case StateDictType::kFull:
      return "FULL";
    case StateDictType::kLocal:
      return "LOCAL";
  }
  return "?";
}

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

LiveState state_dict(const ModuleRef& model, const StateDictOptions& options) {
  check_type(model, nullptr, options);
  return make_state(model, nullptr, options);
}

LiveState state_dict(const ModuleRef& model, torch::optim::Optimizer& optimizer,
                     const StateDictOptions& options) {
  check_type(model, &optimizer, options);
  return make_state(model, &optimizer, options);
}

std::vector<ValueForm> value_forms(const ModuleRef& model, const StateDictOptions& options) {
  check_type(model, nullptr, options);
  std::vector<ValueForm> out;
  for (const ModelTensor& tensor : model_tensors(model).tensors)
    out.push_back(form_of(tensor, options));
  return out;
}

}  // namespace tessera::fsdp

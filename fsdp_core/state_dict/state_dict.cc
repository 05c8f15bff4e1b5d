#include <ATen/ATen.h>
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/fsdp/state_dict.h>

#include <algorithm>
#include <map>
#include <optional>
#include <span>
#include <sstream>
#include <unordered_set>

#include "fsdp_core/bridge/live_memory.h"
#include "fsdp_core/runtime/fail_together.h"
#include "fsdp_core/state_dict/flat_parameters.h"
#include "fsdp_core/state_dict/model_tensors.h"
#include "fsdp_core/state_dict/on_this_rank.h"
#include "fsdp_core/state_dict/optimizer_dict.h"
#include "fsdp_core/state_dict/state_type.h"
#include "fsdp_core/state_dict/transformed.h"

namespace tessera::fsdp {
namespace {

/// What the callbacks of one live state share.
struct Session {
  std::shared_ptr<torch::nn::Module> keep_alive;
  StateDictOptions options;
  ModelTensors model;
  LiveMemory memory;
  TransformedParameters transformed;
  std::vector<bool> is_transformed;  // by tensor
  std::vector<std::string> names;    // of model.tensors, in the state
  std::unique_ptr<OptimizerDict> optimizer;
  std::map<std::string, const ParamGroup*> flat;  // kLocal
  std::unordered_set<std::string> loaded;         // as all ranks have agreed

  /// Whole, or equal rows: copies, gathered when the state is made.
  bool is_spread(std::size_t t) const {
    const ModelTensor& tensor = model.tensors[t];
    if (!tensor.unit || is_transformed[t]) return false;
    return options.type == StateDictType::kFull ||
           (options.even_chunks && !tensor.group->layout().is_rows(tensor.index));
  }

  /// What is sharded is copied, parameters and optimizer state.
  bool copies() const { return options.type == StateDictType::kFull || options.even_chunks; }
  /// Making the state is collective.
  bool gathers() const {
    return copies() || std::ranges::any_of(model.units, [](const auto& unit) {
             return unit->options().extension != nullptr;
           });
  }
};

StateForm form_of_state(const StateDictOptions& options) {
  if (options.type == StateDictType::kLocal) return StateForm::kFlat;
  if (options.type == StateDictType::kSharded)
    return options.even_chunks ? StateForm::kRows : StateForm::kShards;
  return options.rank0_only ? StateForm::kWholeOnFirstRank : StateForm::kWhole;
}

Path model_path(const StateDictOptions& options, const std::string& fqn) {
  if (options.model_root.empty()) return {key_item(fqn)};
  return {key_item(options.model_root), key_item(fqn)};
}

Spread::Form spread_form(const StateDictOptions& options) {
  if (options.type == StateDictType::kSharded) return Spread::Form::kRows;
  return options.rank0_only ? Spread::Form::kWholeOnFirstRank : Spread::Form::kWhole;
}

/// One tensor of the model in the form that was asked for. Nullopt: nothing of it is here.
std::optional<LiveTensor> live_tensor(Session& session, std::size_t t, const std::string& name) {
  const ModelTensor& tensor = session.model.tensors[t];
  if (session.is_spread(t)) {
    Spread spread =
        Spread::of(tensor.unit, *tensor.group, tensor.index, spread_form(session.options));
    const bool here = spread.here();
    LiveTensor live = session.memory.spread(name, tensor.local, std::move(spread), true);
    live.replicated |=
        session.options.even_chunks ? tensor.replicated : tensor.same_across_extension;
    place_in_whole(live, tensor);
    if (!here) return std::nullopt;
    return live;
  }
  LiveTensor live =
      session.memory.piece(name, tensor.local, tensor.dtype, tensor.shape, tensor.chunk,
                           /*copied=*/false, /*is_buffer=*/!tensor.is_parameter);
  live.replicated = tensor.replicated;
  return live;
}

/// Names of a state, alike on all ranks: one of which a tensor is not must not find out later.
class TakenNames {
 public:
  void add(const std::string& name, const std::string& of) {
    const auto [found, added] = owners_.emplace(name, of);
    if (!added)
      fail(Code::kInvalidArgument,
           fmt::format("\"{}\" and \"{}\" both stand under \"{}\" in the state", found->second, of,
                       name),
           "give the parts of post_unflatten names that nothing else has");
  }

 private:
  std::unordered_map<std::string, std::string> owners_;  // FQNs
};

void add_transformed(Session& session, LiveState& state, const ModelTensor& tensor,
                     TakenNames& names) {
  const auto named = [&](const std::string& fqn) {
    return dotted(model_path(session.options, fqn));
  };
  for (TransformedParameters::Part& part :
       session.transformed.add(tensor, spread_form(session.options), named)) {
    names.add(named(part.fqn), tensor.fqn);
    if (part.live)
      state.append_tensor(model_path(session.options, part.fqn), std::move(*part.live));
  }
}

void add_model(Session& session, LiveState& state) {
  TakenNames names;
  for (std::size_t t = 0; t < session.model.tensors.size(); ++t) {
    const ModelTensor& tensor = session.model.tensors[t];
    const Path path = model_path(session.options, tensor.fqn);
    session.names.push_back(dotted(path));
    if (session.is_transformed[t]) {
      add_transformed(session, state, tensor, names);
      continue;
    }
    names.add(session.names.back(), tensor.fqn);
    std::optional<LiveTensor> live = live_tensor(session, t, session.names.back());
    if (!live) continue;
    live->is_parameter = tensor.is_parameter;
    state.append_tensor(path, std::move(*live));
  }
}

void add_local(Session& session, LiveState& state) {
  for (const auto& unit : session.model.units)
    for (const auto& group : unit->groups()) group->adopt_replaced();
  for (const ModelTensor& tensor : session.model.tensors) {
    const std::string fqn = tensor.unit ? flat_name(session.model, tensor) : tensor.fqn;
    const Path path = model_path(session.options, fqn);
    std::string name = dotted(path);
    session.names.push_back(tensor.unit ? "" : name);  // a flat parameter has one name
    if (tensor.unit && !session.flat.emplace(name, tensor.group).second) continue;
    if (tensor.unit) {
      state.append_tensor(path, flat_parameter(session.memory, tensor, name));
    } else {
      LiveTensor live =
          session.memory.piece(name, tensor.local, tensor.dtype, tensor.shape, tensor.chunk,
                               tensor.tied_to.has_value(), !tensor.is_parameter);
      live.replicated = true;
      state.append_tensor(path, std::move(live));
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
/// holds under several is read apart and compared, before the parameter is filled.
void expect_ties(Session& session, LiveState& state, const Manifest& stored) {
  const std::vector<ModelTensor>& tensors = session.model.tensors;
  session.memory.forget_ties();
  std::unordered_set<std::string> there;
  for (const StateEntry& entry : stored.state.entries)
    if (entry.value.is_tensor()) there.insert(entry.name);
  std::map<std::size_t, std::size_t> read;  // by its first name's number: the one that is stored
  for (std::size_t t = 0; t < session.names.size(); ++t)
    if (there.contains(session.names[t])) read.try_emplace(tensors[t].tied_to.value_or(t), t);
  std::unordered_set<std::string> dropped;
  std::unordered_map<std::string, std::size_t> apart;
  for (std::size_t t = 0; t < session.names.size(); ++t) {
    const auto first = read.find(tensors[t].tied_to.value_or(t));
    if (first == read.end() || first->second == t) continue;
    if (!there.contains(session.names[t])) {
      dropped.insert(session.names[t]);
    } else if (session.is_spread(t)) {
      session.memory.tie(session.names[t], session.names[first->second]);
    } else {
      apart.emplace(session.names[first->second], first->second);
      apart.emplace(session.names[t], t);
    }
  }
  if (!dropped.empty())
    state.remove_if([&](const StateEntry& entry) { return dropped.contains(entry.name); });
  if (apart.empty()) return;
  state.edit([&](LiveContents& contents) {
    for (const StateEntry& entry : contents.dict.entries) {
      const auto found = apart.find(entry.name);
      if (found == apart.end()) continue;
      const ModelTensor& tensor = tensors[found->second];
      const std::size_t first = read.at(tensor.tied_to.value_or(found->second));
      LiveTensor& live = contents.tensors[entry.value.tensor_index()];
      const bool replicated = live.replicated;
      live =
          session.memory.name_apart(entry.name, first == found->second ? "" : session.names[first],
                                    tensor.local, tensor.dtype, tensor.shape, tensor.chunk);
      live.replicated = replicated;
    }
  });
}

/// Where values are whole on the first rank alone, the others hear from it what came.
std::unordered_set<std::string> agreed_names(const Session& session,
                                             const std::vector<std::string>& loaded) {
  std::unordered_set<std::string> names(loaded.begin(), loaded.end());
  if (!session.options.rank0_only || session.model.units.empty()) return names;
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

/// What was asked for, as ranks that gather together must all have asked.
std::string asked_for(const StateDictOptions& options, bool with_optimizer) {
  std::string out(state_dict_type_name(options.type));
  if (options.rank0_only) out += " with rank0_only";
  if (options.even_chunks) out += " with even_chunks";
  out += fmt::format(" under \"{}\"", options.model_root);
  if (with_optimizer) out += fmt::format(" and, of optimizers, \"{}\"", options.optim_root);
  return out + '\n';
}

/// Finds what is transformed, and the optimizer's part. Where ranks are about to gather together,
/// they must have found the same: each of them throws where one of them does, or another differs.
void look(Session& session, const OptimizerRef* optimizers) {
  std::vector<Communicator*> groups;
  if (session.gathers()) groups = communicators_of(session.model.units);
  const TogetherCall call{"state_dict", {"state dict", CommPhase::kCheck}, ""};
  std::string lines = asked_for(session.options, optimizers != nullptr);
  fail_together(groups, call, [&] {
    for (const ModelTensor& tensor : session.model.tensors) {
      const bool yes = session.options.type != StateDictType::kLocal && is_transformed(tensor);
      session.is_transformed.push_back(yes);
      if (yes) lines += fmt::format("\"{}\" is transformed\n", tensor.fqn);
    }
    if (optimizers == nullptr) return;
    session.optimizer = std::make_unique<OptimizerDict>(
        *optimizers, session.model, session.options.optim_root, form_of_state(session.options),
        session.options.replicated_state);
    if (session.copies()) lines += session.optimizer->lines();
  });
  fail_together(groups, call, [&] {
    check_alike(groups, call.tag, "states", lines,
                "every rank must ask for the same, step every optimizer equally often, and have "
                "extensions that answer alike");
  });
}

LiveState make_state(const ModuleRef& model, const OptimizerRef* optimizers,
                     const StateDictOptions& options) {
  auto session = std::make_shared<Session>();
  session->keep_alive = model.ptr();
  session->options = options;
  session->model = model_tensors(model);
  look(*session, optimizers);
  LiveState state;
  if (options.type == StateDictType::kLocal)
    add_local(*session, state);
  else
    add_model(*session, state);
  if (session->optimizer) session->optimizer->declare(state);
  const auto begin = [session] {
    auto staged = std::make_shared<StagedCopies>();
    session->memory.refresh(*staged);
    if (session->optimizer) session->optimizer->refresh(*staged);
    staged->begin();
    return staged;
  };
  state.before_save = [begin] { begin()->wait(); };
  // (The copies alone: as below.)
  state.before_lazy_save = [begin] { return [staged = begin()] { staged->wait(); }; };
  state.agreed = [session] {
    return session->optimizer ? session->optimizer->agreed() : std::vector<Agreement>();
  };
  // (The tensors alone: what this keeps alive may end in another thread.)
  std::vector<std::shared_ptr<const ChangeWatch>> watches = {session->memory.watch()};
  if (session->optimizer) watches.push_back(session->optimizer->watch());
  state.changed = [watches] {
    std::string name;
    for (const auto& watch : watches)
      if (name.empty()) name = watch->changed();
    return name;
  };
  state.materialise = [session](LiveState& mine, const Manifest& stored) {
    expect_ties(*session, mine, stored);
    if (session->optimizer) session->optimizer->expect(mine, stored);
  };
  state.check_value = [session](const StateEntry& stored) {
    if (session->optimizer) session->optimizer->check(stored);
  };
  state.check_loaded = [session](const std::vector<std::string>& loaded) {
    session->loaded = agreed_names(*session, loaded);
    session->transformed.check(session->loaded);
    session->memory.scatter(session->loaded);
    if (session->optimizer) session->optimizer->scatter(session->loaded);
    // What this rank alone may refuse comes after what all its peers take part in.
    session->memory.check(session->loaded);
    if (session->optimizer) session->optimizer->check_loaded(session->loaded);
  };
  // Nothing here waits for other ranks, or fails: memory is changing.
  state.after_load = [session](const std::vector<std::string>&) {
    session->memory.write_back(session->loaded);
    session->transformed.write_back();
    moved(session->flat, session->loaded);
    if (session->optimizer) session->optimizer->commit(session->loaded);
  };
  return state;
}

}  // namespace

OptimizerRef::OptimizerRef(const std::vector<UnitOptimizer>& of_units) {
  if (of_units.empty())
    fail(Code::kInvalidArgument, "state_dict with an optimizer: the list of optimizers is empty",
         "call optimizer_in_backward first, or leave it out");
  for (const UnitOptimizer& each : of_units) {
    if (!each.optimizer)
      fail(Code::kInvalidArgument,
           fmt::format("state_dict with an optimizer: that of unit \"{}\" is null", each.unit));
    all_.push_back(each.optimizer.get());
  }
}

LiveState state_dict(const ModuleRef& model, const StateDictOptions& options) {
  return on_this_rank(model, "state_dict", [&] {
    check_state_type(model, /*with_optimizer=*/false, options);
    return make_state(model, nullptr, options);
  });
}

LiveState state_dict(const ModuleRef& model, const OptimizerRef& optimizers,
                     const StateDictOptions& options) {
  return on_this_rank(model, "state_dict", [&] {
    check_state_type(model, /*with_optimizer=*/true, options);
    return make_state(model, &optimizers, options);
  });
}

}  // namespace tessera::fsdp

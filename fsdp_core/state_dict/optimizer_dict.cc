#include "fsdp_core/state_dict/optimizer_dict.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <tessera/base/error.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "fsdp_core/bridge/dtype.h"
#include "fsdp_core/state_dict/group_options.h"

namespace tessera::fsdp {
namespace {

/// Beyond it a float32 skips integers.
constexpr double kMaxStep = 16777216;

double checked_step(double step, const std::string& name) {
  if (!(step >= 0 && std::floor(step) == step))
    fail(Code::kInvalidArgument, fmt::format("{} is {}, which is no count of steps", name, step));
  if (step > kMaxStep)
    fail(Code::kInvalidArgument,
         fmt::format("{} is {:.0f}: PyTorch keeps steps as float32, exact up to {:.0f}", name, step,
                     kMaxStep));
  return step;
}

std::string shape_text(at::IntArrayRef sizes) { return Shape(sizes.vec()).to_string(); }

}  // namespace

OptimizerDict::OptimizerDict(torch::optim::Optimizer& optimizer, const ModelTensors& model,
                             std::string root, StateForm form)
    : optimizer_(optimizer),
      table_(table_of(optimizer)),
      model_(model),
      root_(std::move(root)),
      form_(form) {
  std::unordered_map<const c10::TensorImpl*, std::size_t> seen;
  std::unordered_map<std::size_t, std::vector<std::string>> ties;
  for (const ModelTensor& tensor : model.tensors)
    if (tensor.tied_to) ties[*tensor.tied_to].push_back(tensor.fqn);
  for (std::size_t g = 0; g < optimizer.param_groups().size(); ++g) {
    const std::vector<at::Tensor>& params = optimizer.param_groups()[g].params();
    for (std::size_t p = 0; p < params.size(); ++p) {
      const auto found = model.by_parameter.find(params[p].unsafeGetTensorImpl());
      if (found == model.by_parameter.end())
        fail(Code::kInvalidArgument,
             fmt::format("parameter {} of the optimizer's group {} (shape {}) is none of the "
                         "model's",
                         p, g, shape_text(params[p].sizes())),
             "build the optimizer from model->parameters(), after fully_shard");
      const ModelTensor& tensor = model.tensors[found->second];
      const auto [earlier, added] = seen.emplace(params[p].unsafeGetTensorImpl(), g);
      if (!added && earlier->second != g)
        fail(Code::kInvalidArgument,
             fmt::format("groups {} and {} of the optimizer both hold parameter \"{}\"",
                         earlier->second, g, tensor.fqn));
      if (!added) continue;  // parameters() of LibTorch lists a tied parameter under each name
      Member member{tensor.fqn, {tensor.fqn}, g, params[p], &tensor};
      for (const std::string& other : ties[found->second]) member.names.push_back(other);
      members_.push_back(std::move(member));
    }
  }
}

OptimizerDict::State* OptimizerDict::state_of(const Member& member) const {
  const auto found = optimizer_.state().find(member.parameter.unsafeGetTensorImpl());
  return found == optimizer_.state().end() ? nullptr : found->second.get();
}

Path OptimizerDict::state_path(const std::string& fqn, const std::string& leaf) const {
  return {key_item(root_), key_item("state"), key_item(fqn), key_item(leaf)};
}

void OptimizerDict::add(LiveState& state, Path path, LiveTensor tensor) const {
  const auto index = static_cast<std::uint32_t>(state.tensors.size());
  state.tensors.push_back(std::move(tensor));
  add_value(state, std::move(path), Value::tensor(index));
}

void OptimizerDict::add_value(LiveState& state, Path path, Value value) const {
  std::string name = dotted(path);
  state.dict.entries.push_back({std::move(name), std::move(path), std::move(value)});
}

// ---- save ----

void OptimizerDict::declare(LiveState& state) {
  memory_ = {};
  counters_.clear();
  for (const Member& member : members_) declare_state(state, member);
  for (std::size_t g = 0; g < optimizer_.param_groups().size(); ++g) declare_group(state, g);
}

std::string OptimizerDict::add_leaf(LiveState& state, const Member& member, const std::string& fqn,
                                    const StateLeaf& leaf, const at::Tensor& tensor, bool fill) {
  Path path = state_path(fqn, leaf.name);
  std::string name = dotted(path);
  if (tensor.sizes() != member.parameter.sizes())
    fail(Code::kInvalidArgument,
         fmt::format("{} has shape {} on this rank, its parameter {}", name,
                     shape_text(tensor.sizes()), shape_text(member.parameter.sizes())),
         "the state was made for other shards: build the optimizer after fully_shard");
  const ModelTensor& model = *member.model;
  if (form_ == StateForm::kShards || !model.unit) {
    LiveTensor live = memory_.piece(name, tensor, tensor.scalar_type(), model.shape, model.chunk);
    live.replicated = model.replicated;
    add(state, std::move(path), std::move(live));
    return name;
  }
  Spread spread = Spread::of(model.unit, *model.group, model.index);
  spread.first_only = form_ == StateForm::kWholeOnFirstRank;
  const bool here = spread.here();
  LiveTensor live = memory_.whole(name, tensor, std::move(spread), fill);
  place_in_whole(live, model);
  if (here) add(state, std::move(path), std::move(live));
  return name;
}

void OptimizerDict::declare_state(LiveState& state, const Member& member) {
  State* held = state_of(member);
  if (held == nullptr) return;
  if (table_.step) {
    Path path = state_path(member.fqn, "step");
    Counter counter{dotted(path), at::empty({}, at::kFloat)};
    counter.buffer.fill_(checked_step(table_.step(*held), counter.name));
    LiveTensor live = memory_.piece(counter.name, counter.buffer, at::kFloat, {},
                                    Chunk::whole_of(Box::whole({})));
    live.replicated = true;
    add(state, std::move(path), std::move(live));
    counters_.emplace_back(&member, std::move(counter));
  }
  for (const StateLeaf& leaf : table_.leaves)
    if (const at::Tensor& tensor = leaf.tensor(*held); tensor.defined())
      add_leaf(state, member, member.fqn, leaf, tensor, true);
}

void OptimizerDict::declare_group(LiveState& state, std::size_t index) const {
  torch::optim::OptimizerParamGroup& group = optimizer_.param_groups()[index];
  const Path path = {key_item(root_), key_item("param_groups"),
                     index_item(static_cast<std::int64_t>(index))};
  ValueDict kept = kept_keys(group.options());
  for (const GroupKey& key : table_.group_keys) {
    const auto held = std::ranges::find_if(
        kept, [&](const auto& item) { return item.first.as_string() == key.name; });
    const bool has = held != kept.end();
    add_value(state, below(path, key.name),
              key.bound() ? key.get(group.options()) : (has ? held->second : key.initial));
    if (has) kept.erase(held);
  }
  ValueList names;
  for (const Member& member : members_)
    if (member.group == index) names.push_back(Value::string(member.fqn));
  add_value(state, below(path, "params"), Value::list(std::move(names)));
  for (auto& [key, value] : kept) add_value(state, below(path, key.as_string()), value);
}

void OptimizerDict::refresh() {
  for (auto& [member, counter] : counters_)
    if (State* held = state_of(*member))
      counter.buffer.fill_(checked_step(table_.step(*held), counter.name));
  memory_.refresh();
  agree_on_steps();
}

void OptimizerDict::agree_on_steps() {
  // What a member counts; without state -1, and state without a counter 0.
  std::map<Communicator*, std::vector<const Member*>> groups;
  std::vector<std::shared_ptr<Communicator>> order;
  for (const Member& member : members_) {
    if (!member.model->unit) continue;
    UnitGroups& comms = member.model->unit->comms();
    for (const std::shared_ptr<Communicator>& comm : {comms.shard, comms.replicate}) {
      if (comm->size() == 1) continue;
      auto& listed = groups[comm.get()];
      if (listed.empty()) order.push_back(comm);
      listed.push_back(&member);
    }
  }
  for (const std::shared_ptr<Communicator>& comm : order) {
    const std::vector<const Member*>& listed = groups[comm.get()];
    std::vector<double> mine;
    for (const Member* member : listed) {
      State* held = state_of(*member);
      mine.push_back(held == nullptr ? -1 : (table_.step ? table_.step(*held) : 0));
    }
    const auto all =
        comm->all_gather_bytes(std::as_bytes(std::span(mine)), {"state dict", CommPhase::kCheck});
    for (std::size_t r = 0; r < all.size(); ++r) {
      if (all[r].size() != mine.size() * sizeof(double))
        fail(Code::kInvalidArgument,
             fmt::format("the optimizer holds {} parameters on this rank and {} on rank {}",
                         mine.size(), all[r].size() / sizeof(double), comm->global_ranks()[r]));
      for (std::size_t m = 0; m < mine.size(); ++m) {
        double theirs = 0;
        std::memcpy(&theirs, all[r].data() + m * sizeof(double), sizeof(double));
        if (theirs == mine[m]) continue;
        const auto text = [](double step) {
          return step < 0 ? std::string("no state") : fmt::format("step {:.0f}", step);
        };
        fail(Code::kInvalidArgument,
             fmt::format("parameter \"{}\": the optimizer has {} on rank {} and {} on rank {}",
                         listed[m]->fqn, text(mine[m]), comm->global_ranks()[comm->rank()],
                         text(theirs), comm->global_ranks()[r]),
             "every rank must step every optimizer equally often");
      }
    }
  }
}

// ---- load ----

template <class F>
void OptimizerDict::defer(F&& f) {
  try {
    f();
  } catch (const Error&) {
    if (!deferred_) deferred_ = std::current_exception();
  }
}

void OptimizerDict::expect(LiveState& state, const Manifest& stored) {
  const Roles roles = find_roles(stored.state);
  const std::vector<OptimState> all = canonical_optim_states(stored, roles);
  const auto optim = std::ranges::find(all, root_, &OptimState::root);
  if (optim == all.end()) return;  // what declare added will be missing
  memory_ = {};
  counters_.clear();
  pending_.clear();
  deferred_ = nullptr;
  seen_ = false;
  std::erase_if(state.dict.entries, [&](const StateEntry& entry) {
    return !entry.path.empty() && is_key(entry.path[0], root_);
  });
  for (const Member& member : members_) expect_member(state, member, stored, *optim);
  expect_groups(state, stored, *optim);
}

void OptimizerDict::expect_member(LiveState& state, const Member& member, const Manifest& stored,
                                  const OptimState& optim) {
  const OptimParameter* parameter = nullptr;
  for (const std::string& name : member.names)
    if (!parameter) parameter = optim.find(name);
  if (!parameter) {  // asked for, so that it is listed as missing
    if (state_of(member)) return declare_state(state, member);
    at::NoGradGuard no_grad;
    for (const StateLeaf& leaf : table_.leaves)
      if (leaf.required)
        add_leaf(state, member, member.fqn, leaf, at::zeros_like(member.parameter), false);
    return;
  }
  Pending pending;
  pending.member = &member;
  expect_leaves(state, pending, stored, *parameter);
  pending.drop = pending.leaves.empty();
  if (table_.step) defer([&] { expect_step(state, pending, stored, *parameter); });
  pending_.push_back(std::move(pending));
}

void OptimizerDict::expect_leaves(LiveState& state, Pending& pending, const Manifest& stored,
                                  const OptimParameter& parameter) {
  at::NoGradGuard no_grad;
  const Member& member = *pending.member;
  std::vector<std::string> missing;
  State* held = state_of(member);
  if (held == nullptr) pending.fresh = table_.make_state();
  State& target = held ? *held : *pending.fresh;
  for (const StateLeaf& leaf : table_.leaves) {
    const OptimLeaf* found = parameter.find(leaf.name);
    if (found == nullptr || found->tensor == kNoTensor) {  // None: absent
      if (found) {
        const Value& value = stored.state.entries[found->entry].value;
        if (value.is_none()) add_value(state, state_path(parameter.fqn, leaf.name), value);
      }
      pending.absent.push_back(&leaf);
      if (leaf.required) missing.push_back(leaf.name);
      continue;
    }
    at::Tensor& tensor = leaf.tensor(target);
    if (held == nullptr) tensor = at::zeros_like(member.parameter);
    at::Tensor into = tensor;
    if (!into.defined()) {  // a leaf that the optimizer did not keep so far
      if (!pending.fresh) pending.fresh = held->clone();
      into = leaf.tensor(*pending.fresh) = at::zeros_like(member.parameter);
    }
    pending.leaves.push_back(add_leaf(state, member, parameter.fqn, leaf, into, false));
  }
  if (missing.empty() || pending.leaves.empty()) return;
  defer([&] {
    fail(Code::kCorrupt,
         fmt::format("the checkpoint has only a part of the optimizer's state of \"{}\": \"{}\" is "
                     "there, \"{}\" is not",
                     parameter.fqn, pending.leaves.front(), missing.front()),
         fmt::format("it is not the state of {}", table_.name));
  });
}

void OptimizerDict::expect_step(LiveState& state, Pending& pending, const Manifest& stored,
                                const OptimParameter& parameter) {
  const StepRef& step = parameter.own_step.known() ? parameter.own_step : parameter.group_step;
  if (!step.known()) {
    if (pending.drop) return;
    fail(Code::kCorrupt, fmt::format("the checkpoint has state of \"{}\" and no count of its steps",
                                     parameter.fqn));
  }
  Path path = state_path(parameter.fqn, "step");
  const std::string name = dotted(path);
  if (step.value) {
    if (parameter.own_step.known()) add_value(state, std::move(path), Value::real(*step.value));
    pending.step = checked_step(*step.value, name);
    return;
  }
  if (!parameter.own_step.known())
    fail(Code::kUnsupported,
         fmt::format("the step of \"{}\" is a tensor of its group", parameter.fqn));
  const TensorSpec& spec = stored.tensors[step.tensor].spec;
  if (spec.shape.numel() != 1)
    fail(Code::kCorrupt,
         fmt::format("{} has shape {}: one number was expected", name, spec.shape.to_string()));
  const std::vector<std::int64_t> sizes(spec.shape.extents().begin(), spec.shape.extents().end());
  const at::ScalarType type = scalar_type_of(spec.dtype);
  Counter counter{name, at::zeros(sizes, at::TensorOptions().dtype(type))};
  LiveTensor live = memory_.piece(name, counter.buffer, type, spec.shape,
                                  Chunk::whole_of(Box::whole(spec.shape)));
  live.replicated = true;
  add(state, std::move(path), std::move(live));
  pending.counter = std::move(counter);
}

void OptimizerDict::expect_groups(LiveState& state, const Manifest& stored,
                                  const OptimState& optim) {
  std::map<std::string, std::size_t> group_of;  // FQN -> stored group
  for (std::size_t g = 0; g < optim.groups.size(); ++g)
    for (const std::string& fqn : optim.groups[g].members) group_of.emplace(fqn, g);

  new_options_.clear();
  new_options_.resize(optimizer_.param_groups().size());
  std::vector<std::int64_t> source(new_options_.size(), -1);
  std::vector<std::string> witness(new_options_.size());
  std::unordered_set<std::int64_t> used;  // indices of stored groups with members of ours
  for (const Member& member : members_) {
    for (const std::string& name : member.names) {
      const auto found = group_of.find(name);
      if (found == group_of.end()) continue;
      const auto stored_group = static_cast<std::int64_t>(found->second);
      used.insert(optim.groups[found->second].index);
      std::int64_t& from = source[member.group];
      if (from >= 0 && from != stored_group &&
          optim.groups[static_cast<std::size_t>(from)].options !=
              optim.groups[found->second].options)
        defer([&] {
          fail(
              Code::kInvalidArgument,
              fmt::format("group {} of the optimizer holds \"{}\" and \"{}\", which the checkpoint "
                          "has in groups {} and {} with different options",
                          member.group, witness[member.group], name,
                          optim.groups[static_cast<std::size_t>(from)].index,
                          optim.groups[found->second].index),
              "group the parameters as they were saved");
        });
      if (from < 0) witness[member.group] = name;
      if (from < 0) from = stored_group;
      break;
    }
  }
  for (std::size_t g = 0; g < source.size(); ++g) {
    // A group without members is known by its place alone.
    if (source[g] < 0 && optimizer_.param_groups()[g].params().empty() && g < optim.groups.size() &&
        optim.groups[g].members.empty()) {
      source[g] = static_cast<std::int64_t>(g);
      used.insert(optim.groups[g].index);
    }
    if (source[g] < 0) {
      declare_group(state, g);  // asked for, so that it is listed as missing
      continue;
    }
    defer([&] {
      new_options_[g] = options_from(g, optim.groups[static_cast<std::size_t>(source[g])]);
    });
  }
  const Roles roles = find_roles(stored.state);
  std::unordered_set<std::string> asked;
  for (std::size_t e = 0; e < roles.entries.size(); ++e) {
    const EntryRole& role = roles.entries[e];
    if (role.role != Role::kOptimGroup || role.root < 0 ||
        roles.optimizers[static_cast<std::size_t>(role.root)].name != root_)
      continue;
    const StateEntry& entry = stored.state.entries[e];
    if (entry.value.is_tensor()) continue;
    const bool wanted = role.group < 0 || used.contains(role.group);
    if (wanted) state.dict.entries.push_back({entry.name, entry.path, entry.value});
  }
}

std::unique_ptr<torch::optim::OptimizerOptions> OptimizerDict::options_from(
    std::size_t group, const OptimGroup& stored) const {
  // (clone() is the one of the group: options of a class of their own stay of it.)
  const torch::optim::OptimizerParamGroup copy(optimizer_.param_groups()[group]);
  auto options = copy.options().clone();
  ValueDict kept;
  for (const auto& [name, value] : stored.options) {
    if (!name.is_string() || value.is_tensor()) continue;
    if (name.as_string() == "params" || name.as_string() == "param_names") continue;
    const std::string where =
        fmt::format("{}.param_groups.{}.{}", root_, stored.index, name.as_string());
    const GroupKey* key = table_.find_key(name.as_string());
    if (key == nullptr || (!key->bound() && !key->fixed())) {
      if (key == nullptr || !(value == key->initial)) kept.emplace_back(name, value);
    } else if (key->fixed()) {
      if (!(value == key->initial))
        fail(Code::kInvalidArgument,
             fmt::format("{} is {} in the checkpoint and {} for {}: {}", where,
                         value.kind() == Value::Kind::kBool ? (value.as_bool() ? "True" : "False")
                                                            : "another value",
                         key->initial.as_bool() ? "True" : "False", table_.name,
                         key->fixed_because));
    } else {
      try {
        key->set(*options, value);
      } catch (const Error& error) {
        fail(Code::kInvalidArgument, fmt::format("{} {}", where, error.status().message));
      }
    }
  }
  if (kept.empty() && kept_keys(*options).empty()) return options;
  return table_.with_kept(*options, std::move(kept));
}

void OptimizerDict::check(const StateEntry& stored) {
  if (stored.path.empty() || !is_key(stored.path[0], root_)) return;
  seen_ = true;
  if (deferred_) std::rethrow_exception(deferred_);
}

void OptimizerDict::commit(const std::unordered_set<std::string>& loaded) {
  memory_.write_back(loaded);
  for (Pending& pending : pending_) {
    const auto key = pending.member->parameter.unsafeGetTensorImpl();
    if (pending.drop) {
      if (seen_) optimizer_.state().erase(key);
      continue;
    }
    const bool whole = std::ranges::all_of(
        pending.leaves, [&](const std::string& name) { return loaded.contains(name); });
    if (!whole) continue;
    if (deferred_) std::rethrow_exception(deferred_);
    if (pending.counter && loaded.contains(pending.counter->name))
      pending.step = checked_step(pending.counter->buffer.item<double>(), pending.counter->name);
    if (pending.fresh) optimizer_.state()[key] = std::move(pending.fresh);
    State& state = *optimizer_.state().at(key);
    for (const StateLeaf* leaf : pending.absent) leaf->tensor(state).reset();
    if (pending.step) table_.set_step(state, *pending.step);
  }
  if (!seen_) return;
  for (std::size_t g = 0; g < new_options_.size(); ++g) {
    if (!new_options_[g]) continue;
    torch::optim::OptimizerParamGroup& group = optimizer_.param_groups()[g];
    // In place where nothing but fields changes: references to the options stay right.
    const ValueDict kept = kept_keys(*new_options_[g]);
    if (kept.empty() && kept_keys(group.options()).empty()) {
      for (const GroupKey& key : table_.group_keys)
        if (key.bound()) key.set(group.options(), key.get(*new_options_[g]));
    } else {
      group.set_options(std::move(new_options_[g]));
    }
  }
}

}  // namespace tessera::fsdp

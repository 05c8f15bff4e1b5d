// OptimizerDict: what a load asks for, by what is stored, and taking it over.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/state/roles.h>

#include <algorithm>

#include "fsdp_core/bridge/dtype.h"
#include "fsdp_core/bridge/untouched_zeros.h"
#include "fsdp_core/params/outside_inference.h"
#include "fsdp_core/state_dict/optimizer_dict.h"

namespace tessera::fsdp {
namespace {

/// Not absent, nor None.
bool is_tensor(const OptimLeaf* found) { return found != nullptr && found->tensor != kNoTensor; }

}  // namespace

void OptimizerDict::defer(const std::string& where, const std::function<void()>& f) {
  try {
    in_tensor(where, f);
  } catch (const Error&) {
    if (!deferred_) deferred_ = std::current_exception();
  }
}

void OptimizerDict::expect(LiveState& state, const Manifest& stored) {
  const OutsideInference outside;  // what is made here is going to be trained
  const Roles roles = find_roles(stored.state);
  const std::vector<OptimState> all = canonical_optim_states(stored, roles);
  const auto optim = std::ranges::find(all, root_, &OptimState::root);
  pending_.clear();
  deferred_ = nullptr;
  seen_ = false;
  if (optim == all.end()) return;  // what declare added will be missing
  memory_ = {};
  counters_.clear();
  borrowed_.clear();
  is_for_load_ = true;
  read_steps();
  state.remove_if([&](const StateEntry& entry) {  // what declare added
    return !entry.path.empty() && is_key(entry.path[0], root_);
  });
  for (const OptimizerEntry& entry : entries_) expect_entry(state, entry, stored, *optim);
  groups_.expect(state, stored, *optim, [&](const std::function<void()>& f) {
    defer(dotted({key_item(root_), key_item("param_groups")}), f);
  });
}

/// Asked for, so that it is listed as missing.
void OptimizerDict::expect_missing(LiveState& state, const OptimizerEntry& entry) {
  if (state_of(*entry.parts[0])) return declare_state(state, entry, /*fill=*/false);
  bool any = false;
  for (const StateLeaf& leaf : entry.table().leaves) {
    if (!leaf.required) continue;
    std::vector<at::Tensor> tensors;
    for (const OptimizerMember* part : entry.parts)
      tensors.push_back(at::zeros_like(part->parameter));
    add_leaf(state, entry, entry.fqn, leaf, tensors, false);
    any = true;
  }
  if (any) return;
  // A class that need not keep state: the parameter is known by its group alone.
  state.append_value(
      {key_item(root_), key_item("param_groups"),
       index_item(static_cast<std::int64_t>(entry.group)), key_item("params"), key_item(entry.fqn)},
      Value());
}

void OptimizerDict::expect_entry(LiveState& state, const OptimizerEntry& entry,
                                 const Manifest& stored, const OptimState& optim) {
  const OptimParameter* parameter = nullptr;
  for (const std::string& name : entry.names)
    if (!parameter) parameter = optim.find(name);
  const auto is_held = [&](const StateLeaf& leaf) { return is_tensor(parameter->find(leaf.name)); };
  if (!parameter ||
      (entry.table().has_state_from_start && std::ranges::none_of(entry.table().leaves, is_held)))
    return expect_missing(state, entry);
  Pending pending;
  pending.entry = &entry;
  expect_leaves(state, pending, stored, optim, *parameter);
  pending.drop = pending.leaves.empty();
  if (entry.table().step)
    defer(state_name(parameter->fqn), [&] { expect_step(state, pending, stored, *parameter); });
  pending_.push_back(std::move(pending));
}

/// Whether `option` is set: in the stored group where its options are taken over, else in the
/// optimizer's own group.
bool OptimizerDict::is_set(const std::string& option, const OptimizerEntry& entry,
                           const OptimState& optim, const OptimParameter& parameter) {
  if (option.empty()) return false;
  Value value;
  const auto group = std::ranges::find(optim.groups, parameter.group, &OptimGroup::index);
  if (const Value* found = group == optim.groups.end() ? nullptr : group->find(option)) {
    value = *found;
  } else {
    const OwnedGroup& own = entry.parts[0]->owner;
    value = own.table->find_key(option)->get(own.group().options());
  }
  if (value.kind() == Value::Kind::kBool) return value.as_bool();
  return value.is_number() && value.as_real() != 0;
}

void OptimizerDict::expect_leaves(LiveState& state, Pending& pending, const Manifest& stored,
                                  const OptimState& optim, const OptimParameter& parameter) {
  const OptimizerTable& table = pending.entry->table();
  std::vector<std::string> missing;
  for (const OptimizerMember* part : pending.entry->parts)
    pending.fresh.push_back(state_of(*part) ? nullptr : table.make_state());
  for (const StateLeaf& leaf : table.leaves) {
    const OptimLeaf* found = parameter.find(leaf.name);
    if (!is_tensor(found)) {
      if (found) {
        const Value& value = stored.state.entries[found->entry].value;
        if (value.is_none()) state.append_value(state_path(parameter.fqn, leaf.name), value);
      }
      pending.absent.push_back(&leaf);
      if (leaf.required || is_set(leaf.needed_with, *pending.entry, optim, parameter))
        missing.push_back(leaf.name);
      continue;
    }
    bool all_fresh = true;
    const std::vector<at::Tensor> into =
        targets_of(pending, leaf, stored.tensors[found->tensor].spec, all_fresh);
    pending.leaves.push_back(add_leaf(state, *pending.entry, parameter.fqn, leaf, into,
                                      /*fill=*/false, /*scratch=*/all_fresh));
  }
  if (missing.empty() || pending.leaves.empty()) return;
  defer(state_name(parameter.fqn), [&] {
    fail(Code::kCorrupt,
         fmt::format("the checkpoint has only a part of the optimizer's state of \"{}\": \"{}\" is "
                     "there, \"{}\" is not",
                     parameter.fqn, pending.leaves.front(), missing.front()),
         fmt::format("it is not the state of {} with these options", table.name));
  });
}

/// The tensors that are going to be filled: those of their optimizer, or fresh ones, which it is
/// given by commit.
std::vector<at::Tensor> OptimizerDict::targets_of(Pending& pending, const StateLeaf& leaf,
                                                  const TensorSpec& stored, bool& all_fresh) {
  std::vector<at::Tensor> out;
  for (std::size_t p = 0; p < pending.entry->parts.size(); ++p) {
    const OptimizerMember& part = *pending.entry->parts[p];
    State* held = state_of(part);
    std::unique_ptr<State>& fresh = pending.fresh[p];
    if (held != nullptr && leaf.tensor(*held).defined()) {
      out.push_back(leaf.tensor(*held));
      all_fresh = false;
      continue;
    }
    if (!fresh) fresh = held->clone();  // a leaf that the optimizer did not keep so far
    at::Tensor& tensor = leaf.tensor(*fresh);
    const auto extents = stored.shape.extents();
    tensor =
        is_replicated(leaf)
            ? at::zeros(
                  std::vector<std::int64_t>(extents.begin(), extents.end()),
                  part.parameter.options().dtype(scalar_type_of(stored.dtype)).requires_grad(false))
            : untouched_zeros_like(part.parameter);
    out.push_back(tensor);
  }
  return out;
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
    if (parameter.own_step.known()) state.append_value(std::move(path), Value::real(*step.value));
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
  live.scratch = true;
  state.append_tensor(std::move(path), std::move(live));
  pending.counter = std::move(counter);
}

void OptimizerDict::check(const StateEntry& stored) {
  if (stored.path.empty() || !is_key(stored.path[0], root_)) return;
  seen_ = true;
  if (deferred_) std::rethrow_exception(deferred_);
  groups_.take(stored);
}

void OptimizerDict::check_loaded(const std::unordered_set<std::string>& loaded) {
  memory_.check(loaded);
  for (Pending& pending : pending_) {
    if (is_whole(pending, loaded) && deferred_ && !pending.drop) std::rethrow_exception(deferred_);
    if (pending.counter && loaded.contains(pending.counter->name))
      pending.step = checked_step(pending.counter->buffer.item<double>(), pending.counter->name);
  }
}

/// False where nothing of it is loaded. Half of it, where the other half is of another shape, would
/// be the state of no step: throws.
bool OptimizerDict::is_whole(const Pending& pending,
                             const std::unordered_set<std::string>& loaded) {
  const auto is_loaded = [&](const std::string& name) { return loaded.contains(name); };
  const auto absent = std::ranges::find_if_not(pending.leaves, is_loaded);
  if (absent == pending.leaves.end()) return true;
  const auto here = std::ranges::find_if(pending.leaves, is_loaded);
  if (here == pending.leaves.end()) return false;
  fail(Code::kInvalidArgument,
       fmt::format("\"{}\" would be loaded and \"{}\" not: optimizer state of a parameter is "
                   "loaded whole or not at all",
                   *here, *absent),
       "skip the optimizer (PartPolicy::kSkip)");
}

void OptimizerDict::commit(const std::unordered_set<std::string>& loaded) {
  const OutsideInference outside;
  memory_.write_back(loaded);
  for (Pending& pending : pending_) {
    if (pending.drop) {
      if (seen_)
        for (const OptimizerMember* part : pending.entry->parts)
          part->owner.optimizer->state().erase(part->parameter.unsafeGetTensorImpl());
      continue;
    }
    if (!is_whole(pending, loaded)) continue;
    for (std::size_t p = 0; p < pending.entry->parts.size(); ++p) {
      const OptimizerMember& part = *pending.entry->parts[p];
      auto& slot = part.owner.optimizer->state()[part.parameter.unsafeGetTensorImpl()];
      if (pending.fresh[p]) slot = std::move(pending.fresh[p]);
      for (const StateLeaf* leaf : pending.absent) leaf->tensor(*slot).reset();
      if (pending.step) pending.entry->table().set_step(*slot, *pending.step);
    }
  }
  if (seen_) groups_.commit();
}

}  // namespace tessera::fsdp

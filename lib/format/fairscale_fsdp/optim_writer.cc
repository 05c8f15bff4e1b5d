#include "lib/format/fairscale_fsdp/optim_writer.h"

#include <fmt/format.h>

#include <algorithm>

#include "lib/format/fairscale_fsdp/metadata.h"

namespace tessera::fairscale {
namespace {

using Form = TargetLeaf::Form;

}  // namespace

std::vector<std::vector<std::size_t>> OptimWriter::members_by_group() const {
  std::vector<std::vector<std::size_t>> out;
  std::vector<bool> seen(target.backings.size());
  for (const TargetGroup& group : optimizer.groups) {
    auto& members = out.emplace_back();
    for (const std::size_t parameter : group.members) {
      const std::size_t backing = target.backing_of(parameter);
      if (!seen[backing]) members.push_back(backing);
      seen[backing] = true;
    }
  }
  return out;
}

Value OptimWriter::whole_leaf(ArchiveDraft& draft, const TargetLeaf& leaf) const {
  if (leaf.form == Form::kValue) return draft.take(leaf.value);
  if (leaf.form != Form::kList) return draft.whole(leaf.tensors[0]);
  ValueList items;
  for (const std::uint32_t tensor : leaf.tensors) items.push_back(draft.whole(tensor));
  return Value::list(std::move(items));
}

Value OptimWriter::of_rank(ArchiveDraft& draft, std::int64_t rank, const Shard& shard) const {
  ValueDict state;
  ValueList groups;
  std::int64_t next = 0;
  const auto by_group = members_by_group();
  for (std::size_t g = 0; g < by_group.size(); ++g) {
    ValueList ids;
    for (const std::size_t b : by_group[g]) {
      const TargetBacking& backing = target.backings[b];
      const Value id = Value::integer(next++);
      ids.push_back(id);
      if (optimizer.state[backing.first].empty()) continue;
      const Value* own = rest.own_state(rank, backing.stored_key);
      ValueDict leaves;
      for (std::size_t i = 0; i < optimizer.state[backing.first].size(); ++i) {
        const TargetLeaf& leaf = optimizer.state[backing.first][i];
        const Value* mine = own ? own->find(leaf.name) : nullptr;
        if (mine) {
          leaves.emplace_back(text(leaf.name), draft.take(*mine));
        } else if (leaf.form == Form::kSharded) {
          std::vector<std::uint32_t> tensors;
          for (std::size_t p = 0; p < backing.count; ++p)
            tensors.push_back(optimizer.state[backing.first + p][i].tensors[0]);
          leaves.emplace_back(text(leaf.name), shard(b, leaf, tensors));
        } else if (leaf.form == Form::kList && !leaf.tensors.empty()) {
          // Each rank had its own; more ranks than before take the first's.
          const auto of = static_cast<std::size_t>(rank) < leaf.tensors.size()
                              ? static_cast<std::size_t>(rank)
                              : 0;
          leaves.emplace_back(text(leaf.name), draft.whole(leaf.tensors[of]));
        } else {
          leaves.emplace_back(text(leaf.name), whole_leaf(draft, leaf));
        }
      }
      state.emplace_back(id, Value::dict(std::move(leaves)));
    }
    groups.push_back(group_of(draft, optimizer.groups[g], std::move(ids)));
  }
  ValueDict out;
  out.emplace_back(text("state"), Value::dict(std::move(state)));
  out.emplace_back(text("param_groups"), Value::list(std::move(groups)));
  for (const auto& [key, value] : rest.optimizer_keys(rank))
    out.emplace_back(key, draft.take(value));
  return Value::dict(std::move(out));
}

Value OptimWriter::group_of(ArchiveDraft& draft, const TargetGroup& group,
                            ValueList members) const {
  ValueDict out;
  for (const auto& [key, value] : group.options) out.emplace_back(key, draft.take(value));
  out.emplace_back(text("params"), Value::list(std::move(members)));
  return Value::dict(std::move(out));
}

std::optional<double> OptimWriter::step_value(std::uint32_t tensor) const {
  const auto found =
      std::ranges::lower_bound(steps, tensor, {}, &std::pair<std::uint32_t, double>::first);
  if (found == steps.end() || found->first != tensor) return std::nullopt;
  return found->second;
}

std::optional<DType> OptimWriter::step_dtype() const {
  std::optional<DType> dtype;
  for (const auto& leaves : optimizer.state)
    for (const TargetLeaf& leaf : leaves) {
      if (leaf.name != "step") continue;
      if (leaf.form != Form::kScalar || !step_value(leaf.tensors[0])) return std::nullopt;
      const DType mine = source.tensors[leaf.tensors[0]].spec.dtype;
      if (dtype && *dtype != mine) return std::nullopt;
      dtype = mine;
    }
  return dtype;
}

/// FairScale's loader cuts every tensor for its ranks, bare ones without dims included; those it
/// takes whole stand in a list.
Value OptimWriter::gathered_leaf(ArchiveDraft& draft, const TargetLeaf& leaf, bool numbers) const {
  if (numbers && leaf.name == "step") {
    const double value = *step_value(leaf.tensors[0]);
    return is_floating(source.tensors[leaf.tensors[0]].spec.dtype)
               ? Value::real(value)
               : Value::integer(static_cast<std::int64_t>(value));
  }
  if (leaf.form == Form::kScalar) return Value::list({draft.whole(leaf.tensors[0])});
  if (leaf.form == Form::kSharded && source.tensors[leaf.tensors[0]].spec.shape.rank() == 0)
    return draft.reshaped(leaf.tensors[0], Shape{1});  // of a parameter without dims
  return whole_leaf(draft, leaf);
}

Value OptimWriter::state_of(ArchiveDraft& draft, std::size_t parameter, bool numbers) const {
  ValueDict leaves;
  for (const TargetLeaf& leaf : optimizer.state[parameter])
    leaves.emplace_back(text(leaf.name), gathered_leaf(draft, leaf, numbers));
  return Value::dict(std::move(leaves));
}

Value OptimWriter::gathered(ArchiveDraft& draft) {
  const bool numbers = step_dtype().has_value();
  ValueDict state;
  for (std::size_t p = 0; p < target.parameters.size(); ++p)
    if (!optimizer.state[p].empty())
      state.emplace_back(Value::integer(static_cast<std::int64_t>(p)), state_of(draft, p, numbers));
  ValueList groups;
  for (const TargetGroup& group : optimizer.groups) {
    ValueList members;
    for (const std::size_t parameter : group.members)
      members.push_back(Value::integer(static_cast<std::int64_t>(parameter)));
    groups.push_back(group_of(draft, group, std::move(members)));
  }
  ValueDict out;
  out.emplace_back(text("state"), Value::dict(std::move(state)));
  out.emplace_back(text("param_groups"), Value::list(std::move(groups)));
  add_maps(out);
  for (const auto& [key, value] : rest.optimizer_keys(-1)) out.emplace_back(key, draft.take(value));
  return Value::dict(std::move(out));
}

void OptimWriter::add_maps(ValueDict& out) {
  ValueDict map;
  ValueList uncollected;
  std::vector<bool> used;
  for (std::size_t b = 0; b < target.backings.size(); ++b) {
    const TargetBacking& backing = target.backings[b];
    bool any = false;
    for (std::size_t i = 0; i < backing.count; ++i) {
      const bool has_state = !optimizer.state[backing.first + i].empty();
      any = any || has_state;
      map.emplace_back(Value::integer(static_cast<std::int64_t>(backing.first + i)),
                       has_state ? Value::integer(static_cast<std::int64_t>(b)) : Value());
    }
    if (any && backing.no_broadcast)
      uncollected.push_back(Value::integer(static_cast<std::int64_t>(b)));
    used.push_back(any);
  }
  out.emplace_back(text("param_id_map"), Value::dict(std::move(map)));
  out.emplace_back(text("uncollected_local_ids"), Value::list(std::move(uncollected)));
  note_limits(used);
}

/// What FairScale's own loader makes of this file, where that is less than what the file says.
void OptimWriter::note_limits(const std::vector<bool>& used) {
  const auto note = [this](std::string message) {
    notes.push_back({"CK034", "info", std::move(message), "", ""});
  };
  if (optimizer.groups.size() > 1)
    note(
        fmt::format("{} parameter groups are kept; FairScale's own loader gives every group all "
                    "parameters",
                    optimizer.groups.size()));
  const bool any = std::ranges::any_of(used, [](bool u) { return u; });
  if (any && std::ranges::count(used, false) > 1)
    note("several flat parameters have no state; FairScale's own loader takes at most one such");
  for (const TargetBacking& backing : target.backings) {
    std::size_t with = 0;
    for (std::size_t i = 0; i < backing.count; ++i)
      with += !optimizer.state[backing.first + i].empty();
    if (with == 0 || with == backing.count) continue;
    note(
        "parameters with and without state share a flat parameter; FairScale's own loader "
        "refuses that");
    return;
  }
}

}  // namespace tessera::fairscale

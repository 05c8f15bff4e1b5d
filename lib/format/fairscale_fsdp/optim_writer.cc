#include "lib/format/fairscale_fsdp/optim_writer.h"

#include <fmt/format.h>

#include <algorithm>

#include "lib/format/fairscale_fsdp/metadata.h"

namespace tessera::fairscale {
namespace {

using Form = GroupedLeaf::Form;

}  // namespace

std::vector<std::vector<std::size_t>> OptimWriter::members_by_group() const {
  std::vector<std::vector<std::size_t>> out;
  std::vector<bool> seen(target.backings.size());
  for (const OptimizerGroup& group : optimizer.grouped.groups()) {
    auto& members = out.emplace_back();
    for (const std::size_t parameter : group.members) {
      const std::size_t backing = target.backing_of(parameter);
      if (!seen[backing]) members.push_back(backing);
      seen[backing] = true;
    }
  }
  return out;
}

Value OptimWriter::whole_leaf(ArchiveDraft& draft, const GroupedLeaf& leaf) const {
  if (leaf.form == Form::kValue) return draft.take(leaf.value);
  if (leaf.form != Form::kList) return draft.whole(leaf.tensors[0]);
  ValueList items;
  for (const std::uint32_t tensor : leaf.tensors) items.push_back(draft.whole(tensor));
  return Value::list(std::move(items));
}

Value OptimWriter::leaf_of_rank(ArchiveDraft& draft, std::int64_t rank, std::size_t b,
                                std::size_t i, const Shard& shard) const {
  const TargetBacking& backing = target.backings[b];
  const GroupedLeaf& leaf = optimizer.grouped.state(backing.first)[i];
  const Value* own = rest.own_state(rank, backing.stored_key);
  if (const Value* mine = own ? own->find(leaf.name) : nullptr) return draft.take(*mine);
  if (leaf.form == Form::kSharded) {
    std::vector<std::uint32_t> tensors;
    for (std::size_t p = 0; p < backing.count; ++p)
      tensors.push_back(optimizer.grouped.state(backing.first + p)[i].tensors[0]);
    return shard(b, tensors);
  }
  if (leaf.form != Form::kList || leaf.tensors.empty()) return whole_leaf(draft, leaf);
  // Each rank had its own; more ranks than before take the first's.
  const auto of = static_cast<std::size_t>(rank);
  return draft.whole(leaf.tensors[of < leaf.tensors.size() ? of : 0]);
}

Value OptimWriter::of_rank(ArchiveDraft& draft, std::int64_t rank, const Shard& shard) const {
  ValueDict state;
  std::vector<ValueList> ids;
  std::int64_t next = 0;
  for (const std::vector<std::size_t>& members : members_by_group()) {
    ids.emplace_back();
    for (const std::size_t b : members) {
      const Value id = Value::integer(next++);
      ids.back().push_back(id);
      const GroupedState& leaves = optimizer.grouped.state(target.backings[b].first);
      if (leaves.empty()) continue;
      ValueDict made;
      for (std::size_t i = 0; i < leaves.size(); ++i)
        made.emplace_back(text(leaves[i].name), leaf_of_rank(draft, rank, b, i, shard));
      state.emplace_back(id, Value::dict(std::move(made)));
    }
  }
  ValueDict out;
  out.emplace_back(text("state"), Value::dict(std::move(state)));
  out.emplace_back(text("param_groups"), groups(draft, std::move(ids)));
  for (const auto& [key, value] : rest.optimizer_keys(rank))
    out.emplace_back(key, draft.take(value));
  return Value::dict(std::move(out));
}

Value OptimWriter::groups(ArchiveDraft& draft, std::vector<ValueList> members) const {
  return param_groups_value(optimizer.grouped.groups(), std::move(members),
                            [&](const Value& value) { return draft.take(value); });
}

std::optional<DType> OptimWriter::step_dtype() const {
  std::optional<DType> dtype;
  for (std::size_t p = 0; p < optimizer.grouped.size(); ++p)
    for (const GroupedLeaf& leaf : optimizer.grouped.state(p)) {
      if (leaf.name != "step") continue;
      if (leaf.form != Form::kScalar || !optimizer.grouped.number_of(leaf.tensors[0]))
        return std::nullopt;
      const DType mine = source.tensors[leaf.tensors[0]].spec.dtype;
      if (dtype && *dtype != mine) return std::nullopt;
      dtype = mine;
    }
  return dtype;
}

/// FairScale's loader cuts every tensor for its ranks, bare ones without dims included; those it
/// takes whole stand in a list.
Value OptimWriter::gathered_leaf(ArchiveDraft& draft, const GroupedLeaf& leaf, bool numbers) const {
  if (numbers && leaf.name == "step") {
    const double value = *optimizer.grouped.number_of(leaf.tensors[0]);
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
  for (const GroupedLeaf& leaf : optimizer.grouped.state(parameter))
    leaves.emplace_back(text(leaf.name), gathered_leaf(draft, leaf, numbers));
  return Value::dict(std::move(leaves));
}

Value OptimWriter::gathered(ArchiveDraft& draft) {
  const bool numbers = step_dtype().has_value();
  ValueDict state;
  for (std::size_t p = 0; p < target.parameters.size(); ++p)
    if (!optimizer.grouped.state(p).empty())
      state.emplace_back(Value::integer(static_cast<std::int64_t>(p)), state_of(draft, p, numbers));
  std::vector<ValueList> ids;
  for (const OptimizerGroup& group : optimizer.grouped.groups()) {
    ids.emplace_back();
    for (const std::size_t parameter : group.members)
      ids.back().push_back(Value::integer(static_cast<std::int64_t>(parameter)));
  }
  ValueDict out;
  out.emplace_back(text("state"), Value::dict(std::move(state)));
  out.emplace_back(text("param_groups"), groups(draft, std::move(ids)));
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
      const bool has_state = !optimizer.grouped.state(backing.first + i).empty();
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
    notes.push_back({Finding::kLeftOut, Severity::kInfo, std::move(message), "", ""});
  };
  if (optimizer.grouped.groups().size() > 1)
    note(
        fmt::format("{} parameter groups are kept; FairScale's own loader gives every group all "
                    "parameters",
                    optimizer.grouped.groups().size()));
  const bool any = std::ranges::any_of(used, [](bool u) { return u; });
  if (any && std::ranges::count(used, false) > 1)
    note("several flat parameters have no state; FairScale's own loader takes at most one such");
  for (const TargetBacking& backing : target.backings) {
    std::size_t with = 0;
    for (std::size_t i = 0; i < backing.count; ++i)
      with += !optimizer.grouped.state(backing.first + i).empty();
    if (with == 0 || with == backing.count) continue;
    note(
        "parameters with and without state share a flat parameter; FairScale's own loader "
        "refuses that");
    return;
  }
}

}  // namespace tessera::fairscale

#include "fsdp_core/state_dict/optimizer_groups.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/state/roles.h>

#include <algorithm>
#include <map>

#include "fsdp_core/state_dict/group_options.h"

namespace tessera::fsdp {
namespace {

bool names_members(const Value& key) {
  return key.is_string() && (key.as_string() == "params" || key.as_string() == "param_names");
}

bool same_options(const OptimGroup& a, const OptimGroup& b) {
  const auto options = [](const OptimGroup& group) {
    ValueDict out = group.options;
    std::erase_if(out, [](const auto& item) { return names_members(item.first); });
    return out;
  };
  return options(a) == options(b);
}

}  // namespace

void OptimizerGroups::declare(LiveState& state) const {
  for (std::size_t g = 0; g < groups_.size(); ++g) declare_group(state, g);
}

void OptimizerGroups::declare_group(LiveState& state, std::size_t index) const {
  torch::optim::OptimizerParamGroup& group = groups_[index].group();
  const Path path = {key_item(root_), key_item("param_groups"),
                     index_item(static_cast<std::int64_t>(index))};
  ValueDict kept = kept_keys(group.options());
  for (const GroupKey& key : groups_[index].table->group_keys) {
    const auto held = std::ranges::find_if(
        kept, [&](const auto& item) { return item.first.as_string() == key.name; });
    const bool has = held != kept.end();
    state.append_value(below(path, key.name),
                       key.bound() ? key.get(group.options()) : (has ? held->second : key.initial));
    if (has) kept.erase(held);
  }
  ValueList names;
  for (const OptimizerEntry& entry : entries_)
    if (entry.group == index) names.push_back(Value::string(entry.fqn));
  state.append_value(below(path, "params"), Value::list(std::move(names)));
  for (auto& [key, value] : kept) state.append_value(below(path, key.as_string()), value);
}

OptimizerGroups::Match OptimizerGroups::match(const OptimState& optim, const Defer& defer) const {
  std::map<std::string, std::size_t> group_of;  // FQN -> stored group
  for (std::size_t g = 0; g < optim.groups.size(); ++g)
    for (const std::string& fqn : optim.groups[g].members) group_of.emplace(fqn, g);
  Match out;
  out.source.resize(groups_.size(), -1);
  std::vector<std::string> witness(out.source.size());
  for (const OptimizerEntry& entry : entries_) {
    const auto named = std::ranges::find_if(
        entry.names, [&](const std::string& name) { return group_of.contains(name); });
    if (named == entry.names.end()) continue;
    const std::size_t there = group_of.at(*named);
    out.used.insert(optim.groups[there].index);
    std::int64_t& from = out.source[entry.group];
    if (from < 0) {
      witness[entry.group] = *named;
      from = static_cast<std::int64_t>(there);
      continue;
    }
    const OptimGroup& first = optim.groups[static_cast<std::size_t>(from)];
    if (same_options(first, optim.groups[there])) continue;
    defer([&] {
      fail(Code::kInvalidArgument,
           fmt::format("group {} of the optimizer holds \"{}\" and \"{}\", which the checkpoint "
                       "has in groups {} and {} with different options",
                       entry.group, witness[entry.group], *named, first.index,
                       optim.groups[there].index),
           "group the parameters as they were saved");
    });
  }
  // A group without members is known by its place alone.
  for (std::size_t g = 0; g < out.source.size() && g < optim.groups.size(); ++g)
    if (out.source[g] < 0 && groups_[g].group().params().empty() &&
        optim.groups[g].members.empty()) {
      out.source[g] = static_cast<std::int64_t>(g);
      out.used.insert(optim.groups[g].index);
    }
  return out;
}

void OptimizerGroups::expect(LiveState& state, const Manifest& stored, const OptimState& optim,
                             const Defer& defer) {
  const auto [source, used] = match(optim, defer);
  new_options_.clear();
  new_options_.resize(source.size());
  awaited_.clear();
  std::vector<std::int64_t> stored_groups(source.size(), -1);  // their indices
  for (std::size_t g = 0; g < source.size(); ++g) {
    if (source[g] < 0) {
      declare_group(state, g);  // asked for, so that it is listed as missing
      continue;
    }
    const OptimGroup& from = optim.groups[static_cast<std::size_t>(source[g])];
    stored_groups[g] = from.index;
    note_absent(state, g, from);
    defer([&] {
      check_class(g, from);
      new_options_[g] = options_from(g, from);
    });
  }
  const Roles roles = find_roles(stored.state);
  for (std::size_t e = 0; e < roles.entries.size(); ++e) {
    const EntryRole& role = roles.entries[e];
    if (role.role != Role::kOptimGroup || role.root < 0 ||
        roles.optimizers[static_cast<std::size_t>(role.root)].name != root_)
      continue;
    const StateEntry& entry = stored.state.entries[e];
    if (entry.value.is_tensor()) {
      if (await(entry, role.group, stored_groups))
        state.append_entry({entry.name, entry.path, Value()});
      continue;
    }
    const bool wanted = role.group < 0 || used.contains(role.group);
    if (wanted) state.append_entry({entry.name, entry.path, entry.value});
  }
}

/// Options of another class would be kept as unknown keys, and all state dropped as absent.
void OptimizerGroups::check_class(std::size_t group, const OptimGroup& stored) const {
  const OptimizerTable& table = *groups_[group].table;
  if (stored.find(table.own_group_key) != nullptr) return;
  for (const auto& [name, value] : stored.options)
    if (const OptimizerTable* other =
            name.is_string() ? table_by_group_key(name.as_string()) : nullptr)
      fail(Code::kInvalidArgument,
           fmt::format(
               "{}.param_groups.{} has \"{}\", as {} does, and no \"{}\": the optimizer here "
               "is {}",
               root_, stored.index, name.as_string(), other->python_name, table.own_group_key,
               table.name),
           "make the optimizer that was saved, or skip it (PartPolicy::kSkip)");
}

void OptimizerGroups::note_absent(LiveState& state, std::size_t group,
                                  const OptimGroup& stored) const {
  for (const GroupKey& key : groups_[group].table->group_keys)
    if (key.bound() && stored.find(key.name) == nullptr)
      state.notes.push_back(
          {Finding::kMissingOption, Severity::kWarning,
           fmt::format("group {} of the optimizer keeps its own \"{}\": {}.param_groups.{} of the "
                       "checkpoint has none",
                       group, key.name, root_, stored.index),
           "", ""});
}

/// Whether `option`, a tensor, is one that groups of ours have a field for.
bool OptimizerGroups::await(const StateEntry& option, std::int64_t stored_group,
                            const std::vector<std::int64_t>& stored_groups) {
  bool any = false;
  for (std::size_t g = 0; g < stored_groups.size(); ++g) {
    if (stored_groups[g] < 0 || stored_groups[g] != stored_group) continue;
    const GroupKey* key = groups_[g].table->find_key(option.path.back().key);
    if (key == nullptr || !key->bound()) continue;
    awaited_.emplace(option.name, Awaited{g, key});
    any = true;
  }
  return any;
}

void OptimizerGroups::take(const StateEntry& stored) {
  const auto [first, last] = awaited_.equal_range(stored.name);
  for (auto at = first; at != last; ++at) {
    auto& options = new_options_[at->second.group];
    if (!options) continue;
    try {
      at->second.key->set(*options, stored.value);
    } catch (const Error& error) {
      fail(Code::kInvalidArgument,
           fmt::format("{} {}", stored.name.view(), error.status().message));
    }
  }
}

std::unique_ptr<torch::optim::OptimizerOptions> OptimizerGroups::options_from(
    std::size_t group, const OptimGroup& stored) const {
  // (clone() is the one of the group: options of a class of their own stay of it.)
  const OptimizerTable& table = *groups_[group].table;
  const torch::optim::OptimizerParamGroup copy(groups_[group].group());
  auto options = copy.options().clone();
  ValueDict kept;
  for (const auto& [name, value] : stored.options) {
    if (!name.is_string() || value.is_tensor() || names_members(name)) continue;
    if (name.as_string() == "step" && table.step) continue;  // it is the parameters' now
    const std::string where =
        fmt::format("{}.param_groups.{}.{}", root_, stored.index, name.as_string());
    const GroupKey* key = table.find_key(name.as_string());
    if (key == nullptr || (!key->bound() && !key->fixed())) {
      if (key == nullptr || !(value == key->initial)) kept.emplace_back(name, value);
    } else if (key->fixed()) {
      if (!(value == key->initial))
        fail(
            Code::kInvalidArgument,
            fmt::format("{} is {} in the checkpoint and {} for {}: {}", where,
                        value.kind() == Value::Kind::kBool ? (value.as_bool() ? "True" : "False")
                                                           : "another value",
                        key->initial.as_bool() ? "True" : "False", table.name, key->fixed_because));
    } else {
      try {
        key->set(*options, value);
      } catch (const Error& error) {
        fail(Code::kInvalidArgument, fmt::format("{} {}", where, error.status().message));
      }
    }
  }
  if (kept.empty() && kept_keys(*options).empty()) return options;
  return table.with_kept(*options, std::move(kept));
}

void OptimizerGroups::commit() {
  for (std::size_t g = 0; g < new_options_.size(); ++g) {
    if (!new_options_[g]) continue;
    torch::optim::OptimizerParamGroup& group = groups_[g].group();
    // In place where nothing but fields changes: references to the options stay right.
    const ValueDict kept = kept_keys(*new_options_[g]);
    if (kept.empty() && kept_keys(group.options()).empty()) {
      for (const GroupKey& key : groups_[g].table->group_keys)
        if (key.bound()) key.set(group.options(), key.get(*new_options_[g]));
    } else {
      group.set_options(std::move(new_options_[g]));
    }
  }
}

}  // namespace tessera::fsdp

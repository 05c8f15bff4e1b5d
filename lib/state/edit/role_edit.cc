#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/state/roles.h>

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "lib/state/edit/fqn_place.h"
#include "lib/state/edit/tensor_remapper.h"
#include "lib/state/role_names.h"
#include "lib/state/tensor_wrapper.h"

namespace tessera {
namespace {

/// Members that the groups of a dict list by FQN; ids are left alone.
void collect_members(const Value& value, std::set<std::string>& members) {
  if (value.kind() == Value::Kind::kList || value.kind() == Value::Kind::kTuple) {
    for (const Value& item : value.as_list()) {
      if (item.is_string()) {
        members.insert(item.as_string());
      } else if (const Value* params = item.find("params")) {
        collect_members(*params, members);
      }
    }
  }
}

/// Members that the groups list by integer id, under their text.
void collect_ids(const Value& value, std::map<std::string, std::int64_t>& ids) {
  if (value.kind() != Value::Kind::kList && value.kind() != Value::Kind::kTuple) return;
  for (const Value& item : value.as_list()) {
    if (item.is_int()) {
      ids.emplace(fmt::format("{}", item.as_int()), item.as_int());
    } else if (const Value* params = item.find("params")) {
      collect_ids(*params, ids);
    }
  }
}

/// `path` with the key behind `<root>.state` as the integer that its text is.
void make_id_integer(Path& path, const std::string& root, const std::string& text,
                     std::int64_t id) {
  for (std::size_t i = 0; i + 1 < path.size(); ++i) {
    PathItem& key = path[i + 1];
    if (key.kind != PathItem::Kind::kKey || key.key != text || path[i].text() != "state") continue;
    if (dotted(Path(path.begin(), path.begin() + static_cast<std::ptrdiff_t>(i))) != root) continue;
    key = int_key_item(id);
    return;
  }
}

TensorKind kind_by_shape(const StoredTensor& tensor) {
  const std::string last = tensor.name.substr(tensor.name.rfind('.') + 1);
  if (last.starts_with("running_")) return TensorKind::kBuffer;
  const bool is_weight = is_floating(tensor.spec.dtype) && tensor.spec.shape.rank() >= 1;
  return is_weight ? TensorKind::kParam : TensorKind::kOther;
}

/// A list of FQNs renamed, or with `forget` taken out; a list of group dicts likewise.
Value edit_members(const Value& value, const RenameFqn& rename,
                   const std::unordered_set<std::string>& forget) {
  ValueList items;
  for (const Value& item : value.as_list()) {
    if (item.is_string()) {
      if (forget.contains(item.as_string())) continue;
      items.push_back(Value::string(rename ? rename(item.as_string()) : item.as_string()));
    } else if (item.is_dict() && item.find("params")) {
      ValueDict group = item.as_dict();
      for (auto& [key, option] : group) {
        const bool names =
            key.is_string() && (key.as_string() == "params" || key.as_string() == "param_names");
        if (names && option.kind() == Value::Kind::kList)
          option = edit_members(option, rename, forget);
      }
      items.push_back(Value::dict_of(item.kind(), std::move(group), item.attributes()));
    } else {
      items.push_back(item);
    }
  }
  return Value::list(std::move(items), value.kind());
}

/// The option `param_names` of one group: FQNs beside ids.
bool lists_names(const EntryRole& role, const StateEntry& entry) {
  return role.role == Role::kOptimGroup && role.leaf == "param_names" &&
         entry.value.kind() == Value::Kind::kList;
}

/// Names of buffers, as DeepSpeed's files list them: a conversion back recognises buffers by these.
bool lists_buffers(const StateEntry& entry) {
  return entry.name == "deepspeed.buffer_names" && entry.value.kind() == Value::Kind::kList;
}

}  // namespace

void check_unique(const StateDict& state, Code code, const std::string& advice) {
  std::unordered_set<std::string_view> seen;
  for (const StateEntry& entry : state.entries)
    if (!seen.insert(entry.name).second)
      fail(code, fmt::format("two entries would be named \"{}\"", printable(entry.name)), advice);
}

void assign_kinds(Manifest& manifest, const Roles& roles) {
  std::set<std::string> listed;
  for (std::size_t i = 0; i < roles.entries.size(); ++i) {
    const EntryRole& role = roles.entries[i];
    const Value& value = manifest.state.entries[i].value;
    if (role.role == Role::kOptimState) listed.insert(role.fqn);
    if (role.role == Role::kOptimGroup && !role.fqn.empty()) listed.insert(role.fqn);
    if (lists_members(role, manifest.state.entries[i])) collect_members(value, listed);
  }
  for (std::size_t i = 0; i < roles.entries.size(); ++i) {
    const EntryRole& role = roles.entries[i];
    const Value& value = manifest.state.entries[i].value;
    if (!value.is_tensor()) {
      if (role.root >= 0)
        for (const auto& [name, part] : wrapper_parts(value))
          manifest.tensors[part].kind = TensorKind::kOptim;
      continue;
    }
    StoredTensor& tensor = manifest.tensors[value.tensor_index()];
    if (tensor.kind != TensorKind::kOther) continue;
    if (role.root >= 0) {
      tensor.kind = role.role == Role::kOptimState && is_master_leaf(role.leaf)
                        ? TensorKind::kMaster
                        : TensorKind::kOptim;
    } else if (role.role == Role::kModel && (listed.contains(role.fqn) || tensor.is_parameter)) {
      tensor.kind = TensorKind::kParam;
    } else {
      tensor.kind = kind_by_shape(tensor);
    }
  }
}

void restore_integer_ids(StateDict& state, const Roles& roles) {
  std::vector<std::map<std::string, std::int64_t>> ids(roles.optimizers.size());
  for (std::size_t i = 0; i < roles.entries.size(); ++i) {
    const EntryRole& role = roles.entries[i];
    if (role.root >= 0 && lists_members(role, state.entries[i]))
      collect_ids(state.entries[i].value, ids[static_cast<std::size_t>(role.root)]);
  }
  for (std::size_t i = 0; i < roles.entries.size(); ++i) {
    const EntryRole& role = roles.entries[i];
    if (role.role != Role::kOptimState || role.root < 0) continue;
    const auto root = static_cast<std::size_t>(role.root);
    if (roles.optimizers[root].dialect != OptimDialect::kById) continue;
    const auto id = ids[root].find(role.fqn);
    if (id == ids[root].end()) continue;
    make_id_integer(state.entries[i].path, roles.optimizers[root].name, id->first, id->second);
  }
}

namespace {

/// `changed`: FQNs, old to new; two may change places.
void keep_stored_names(Manifest& manifest, const std::map<std::string, std::string>& changed) {
  std::map<std::string, std::string> stored = manifest.stored_fqns;
  for (const auto& [old, fresh] : changed) stored.erase(old);
  for (const auto& [old, fresh] : changed) {
    const auto known = manifest.stored_fqns.find(old);
    stored[fresh] = known == manifest.stored_fqns.end() ? old : known->second;
  }
  manifest.stored_fqns = std::move(stored);
}

}  // namespace

void rename_parameters(Manifest& manifest, const Roles& roles, const RenameFqn& rename) {
  std::map<std::string, std::string> changed;
  std::vector<bool> renamed_entries(roles.entries.size());
  for (std::size_t i = 0; i < roles.entries.size(); ++i) {
    const EntryRole& role = roles.entries[i];
    StateEntry& entry = manifest.state.entries[i];
    const bool by_id =
        role.root >= 0 &&
        roles.optimizers[static_cast<std::size_t>(role.root)].dialect == OptimDialect::kById;
    if (lists_members(role, entry) || lists_names(role, entry) || lists_buffers(entry)) {
      entry.value = edit_members(entry.value, rename, {});
    } else if (!role.fqn.empty() && !by_id) {
      const std::string fresh = rename(role.fqn);
      if (fresh == role.fqn) continue;
      changed.emplace(role.fqn, fresh);
      renamed_entries[i] = true;
      const std::size_t at = fqn_position(entry, role);
      entry.path = renamed_path(entry.path, at, role.fqn.size(), fresh);
      entry.name = renamed(entry.name, role.fqn, fresh, at);
      if (entry.value.is_tensor()) manifest.tensors[entry.value.tensor_index()].name = entry.name;
    }
  }
  keep_stored_names(manifest, changed);
  check_unique(manifest.state, Code::kInvalidArgument,
               "make the rename rules map different names to different names");
  if (!changed.empty()) settle_renamed(manifest.state, renamed_entries);
}

namespace {

LeftOut left_out_entry(const Manifest& manifest, const StateEntry& entry) {
  LeftOut out;
  out.name = entry.name;
  const bool is_tensor = entry.value.is_tensor();
  out.kind = is_tensor ? LeftOut::Kind::kTensor : LeftOut::Kind::kValue;
  for_each_tensor(entry.value, [&](std::uint32_t tensor) {
    out.bytes += static_cast<std::uint64_t>(manifest.tensors[tensor].spec.size_bytes());
    out.inner_tensors += !is_tensor;
  });
  return out;
}

}  // namespace

void keep_entries(Manifest& manifest, const std::vector<bool>& keep,
                  const std::vector<std::string>& forget) {
  TESSERA_CHECK(keep.size() == manifest.state.entries.size());
  for (std::size_t i = 0; i < keep.size(); ++i)
    if (!keep[i]) manifest.left_out.push_back(left_out_entry(manifest, manifest.state.entries[i]));
  if (!forget.empty()) {
    const std::unordered_set<std::string> gone(forget.begin(), forget.end());
    const Roles roles = find_roles(manifest.state);
    for (std::size_t i = 0; i < keep.size(); ++i)
      if (lists_members(roles.entries[i], manifest.state.entries[i]) ||
          lists_names(roles.entries[i], manifest.state.entries[i]))
        manifest.state.entries[i].value = edit_members(manifest.state.entries[i].value, {}, gone);
  }
  std::vector<StateEntry> kept;
  std::vector<bool> used(manifest.tensors.size());
  const auto use = [&used](std::uint32_t index) { used[index] = true; };
  for (std::size_t i = 0; i < keep.size(); ++i) {
    if (!keep[i]) continue;
    for_each_tensor(manifest.state.entries[i].value, use);
    kept.push_back(std::move(manifest.state.entries[i]));
  }
  for (const QuantParams& quant : manifest.quant) {
    for_each_tensor(quant.scales, use);
    for_each_tensor(quant.zero_points, use);
  }
  for (const ComputedElements& computed : manifest.computed)
    for (const std::uint32_t part : computed.parts) use(part);
  std::vector<std::uint32_t> new_index(manifest.tensors.size(), kNoTensor);
  std::vector<StoredTensor> tensors;
  for (std::size_t i = 0; i < used.size(); ++i) {
    if (!used[i]) continue;
    new_index[i] = static_cast<std::uint32_t>(tensors.size());
    tensors.push_back(std::move(manifest.tensors[i]));
  }
  for (StateEntry& entry : kept) entry.value = remap_tensors(entry.value, new_index);
  for (QuantParams& quant : manifest.quant) {
    quant.scales = remap_tensors(quant.scales, new_index);
    quant.zero_points = remap_tensors(quant.zero_points, new_index);
  }
  for (ComputedElements& computed : manifest.computed)
    for (std::uint32_t& part : computed.parts) part = new_index[part];
  manifest.tensors = std::move(tensors);
  manifest.state.entries = std::move(kept);
}

Value remap_tensors(const Value& value, const std::vector<std::uint32_t>& new_index) {
  return TensorRemapper([&new_index](std::uint32_t old) {
    TESSERA_CHECK(old < new_index.size() && new_index[old] != kNoTensor);
    return new_index[old];
  })(value);
}

}  // namespace tessera

#include "lib/state/edit/forget_ids.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/state/optim_state.h>

#include <algorithm>

#include "lib/state/edit/fqn_place.h"
#include "lib/state/tensor_bytes.h"

namespace tessera {
namespace {

using Keys = std::set<std::string>;

/// Positions of a list of ids that stay.
std::vector<bool> staying(const Value& ids, const Keys& gone) {
  std::vector<bool> keep;
  for (const Value& item : ids.as_list())
    keep.push_back(!item.is_int() || !gone.contains(fmt::format("{}", item.as_int())));
  return keep;
}

Value kept_items(const Value& list, const std::vector<bool>& keep) {
  ValueList items;
  for (std::size_t i = 0; i < keep.size(); ++i)
    if (keep[i]) items.push_back(list.as_list()[i]);
  return Value::list(std::move(items), list.kind());
}

bool is_list(const Value& value) {
  return value.kind() == Value::Kind::kList || value.kind() == Value::Kind::kTuple;
}

/// `param_names` stand in the order of the ids.
bool names_ids(const Value* names, const std::vector<bool>& keep) {
  return names != nullptr && is_list(*names) && names->as_list().size() == keep.size();
}

Value group_without(const Value& group, const Keys& gone) {
  const Value* params = group.find("params");
  if (params == nullptr || !is_list(*params)) return group;
  const std::vector<bool> keep = staying(*params, gone);
  ValueDict options = group.as_dict();
  for (auto& [key, option] : options) {
    if (!key.is_string()) continue;
    const bool names = key.as_string() == "param_names" && names_ids(&option, keep);
    if (key.as_string() == "params" || names) option = kept_items(option, keep);
  }
  return Value::dict_of(group.kind(), std::move(options), group.attributes());
}

/// One optimizer whose state is keyed by id.
class IdForgetter {
 public:
  IdForgetter(Manifest& manifest, const Roles& roles, std::int32_t root, std::vector<bool>& keep)
      : manifest_(manifest), roles_(roles), root_(root), keep_(keep) {}

  void forget(const OptimState& optim, const std::set<std::string>& gone) {
    if (!any_kept()) return;
    Keys ids;
    for (const OptimParameter& p : optim.parameters) {
      const bool open = !p.inferred || !p.certain;
      if (open && !p.leaves.empty()) refuse(optim, *gone.begin());
      if (gone.contains(p.fqn) && !stays_elsewhere(p)) ids.insert(p.stored_key);
    }
    if (ids.empty()) return;
    for (std::size_t i = 0; i < keep_.size(); ++i) {
      if (roles_.entries[i].root != root_) continue;
      if (roles_.entries[i].role == Role::kOptimState && ids.contains(roles_.entries[i].fqn))
        keep_[i] = false;
      if (lists_members(roles_.entries[i], manifest_.state.entries[i])) leave_group(i, ids);
    }
  }

 private:
  /// Tied weights are one parameter: it stays under its other name.
  bool stays_elsewhere(const OptimParameter& p) const {
    if (p.weight == kNoTensor) return false;
    const auto place = place_of(manifest_, manifest_.tensors[p.weight]);
    if (!place) return false;
    for (std::size_t i = 0; i < keep_.size(); ++i) {
      const Value& value = manifest_.state.entries[i].value;
      if (!keep_[i] || roles_.entries[i].role != Role::kModel || !value.is_tensor()) continue;
      if (place_of(manifest_, manifest_.tensors[value.tensor_index()]) == place) return true;
    }
    return false;
  }

  bool any_kept() const {
    for (std::size_t i = 0; i < keep_.size(); ++i)
      if (keep_[i] && roles_.entries[i].root == root_) return true;
    return false;
  }

  [[noreturn]] static void refuse(const OptimState& optim, const std::string& fqn) {
    fail(Code::kUnsupported,
         fmt::format("\"{}\" is left out, and nothing says for certain which ids of optimizer "
                     "\"{}\" are its own: their state would stay behind",
                     printable(fqn), printable(optim.root)),
         "leave the optimizer out too (--only model), or its state by the names that ckpt-inspect "
         "ls shows");
  }

  /// `params` of one group, or all groups as one value.
  void leave_group(std::size_t entry, const Keys& ids) {
    Value& value = manifest_.state.entries[entry].value;
    ValueList groups;
    bool whole = false;
    for (const Value& item : value.as_list()) {
      whole = whole || item.is_dict();
      groups.push_back(item.is_dict() ? group_without(item, ids) : item);
    }
    if (whole) {
      value = Value::list(std::move(groups), value.kind());
      return;
    }
    const std::vector<bool> staying_ids = staying(value, ids);
    for (std::size_t i = 0; i < roles_.entries.size(); ++i) {
      const EntryRole& role = roles_.entries[i];
      if (role.root != root_ || role.role != Role::kOptimGroup || role.leaf != "param_names" ||
          role.group != roles_.entries[entry].group)
        continue;
      Value& names = manifest_.state.entries[i].value;
      if (names_ids(&names, staying_ids)) names = kept_items(names, staying_ids);
    }
    value = kept_items(value, staying_ids);
  }

  Manifest& manifest_;
  const Roles& roles_;
  std::int32_t root_;
  std::vector<bool>& keep_;
};

}  // namespace

void forget_ids(Manifest& manifest, const Roles& roles, const std::set<std::string>& gone,
                std::vector<bool>& keep) {
  if (gone.empty()) return;
  std::size_t root = 0;
  for (const OptimState& optim : canonical_optim_states(manifest, roles)) {
    if (optim.dialect == OptimDialect::kById)
      IdForgetter(manifest, roles, static_cast<std::int32_t>(root), keep).forget(optim, gone);
    ++root;
  }
}

}  // namespace tessera

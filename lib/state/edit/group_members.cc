#include "lib/state/edit/group_members.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include <charconv>
#include <set>

#include "lib/state/role_names.h"

namespace tessera {

MemberLists::MemberLists(std::span<const GroupEdit> edits) : edits_(edits.begin(), edits.end()) {
  for (std::size_t e = 0; e < edits_.size(); ++e)
    for (std::size_t o = 0; o < edits_[e].olds.size(); ++o) places_[edits_[e].olds[o]] = {e, o};
}

void MemberLists::name_id(const std::string& id, const std::string& fqn) {
  ids_.emplace_back(id, fqn);
  fqns_.emplace(id, fqn);
}

std::string MemberLists::fqn_of(const std::string& id) const {
  const auto found = fqns_.find(id);
  return found == fqns_.end() ? id : found->second;
}

const MemberLists::Place* MemberLists::place_of(const std::string& fqn) const {
  const auto found = places_.find(fqn);
  return found == places_.end() ? nullptr : &found->second;
}

void MemberLists::number() const {
  if (numbered_) return;
  numbered_ = true;
  std::int64_t next = 0;
  std::set<std::size_t> done;
  for (const auto& [id, fqn] : ids_) {
    const Place* place = place_of(fqn);
    if (place == nullptr) {
      kept_[id] = fmt::format("{}", next++);
    } else if (done.insert(place->edit).second) {
      for (const std::string& made : edits_[place->edit].made)
        made_[made] = fmt::format("{}", next++);
    }
  }
  // Nothing of this optimizer is replaced: its ids stay as they are, gaps and all.
  if (done.empty())
    for (auto& [id, fresh] : kept_) fresh = id;
}

std::string MemberLists::new_id(const std::string& fqn) const {
  number();
  const auto found = made_.find(fqn);
  TESSERA_CHECK(found != made_.end());
  return found->second;
}

std::string MemberLists::kept_id(const std::string& id) const {
  number();
  const auto found = kept_.find(id);
  return found == kept_.end() ? id : found->second;
}

Value id_value(const std::string& id) {
  std::int64_t number = 0;
  std::from_chars(id.data(), id.data() + id.size(), number);
  return Value::integer(number);
}

Value MemberLists::rewrite(const Value& value) const {
  ValueList items;
  std::map<std::size_t, std::size_t> found;  // members of an edit in this list
  for (const Value& item : value.as_list()) {
    if (item.is_dict() && item.find("params") != nullptr) {
      ValueDict group = item.as_dict();
      for (auto& [key, option] : group) {
        if (!key.is_string() || option.kind() != Value::Kind::kList) continue;
        if (key.as_string() == "params") option = rewrite(option);
        if (key.as_string() == "param_names") option = rewrite_names(option);
      }
      items.push_back(Value::dict_of(item.kind(), std::move(group), item.attributes()));
      continue;
    }
    if (!item.is_string() && !item.is_int()) {
      items.push_back(item);
      continue;
    }
    const std::string key = item.is_int() ? fmt::format("{}", item.as_int()) : item.as_string();
    const Place* place = place_of(item.is_int() ? fqn_of(key) : key);
    if (place == nullptr) {
      items.push_back(item.is_int() ? id_value(kept_id(key)) : item);
    } else if (++found[place->edit] == 1) {
      for (const std::string& made : edits_[place->edit].made)
        items.push_back(item.is_int() ? id_value(new_id(made)) : Value::string(made));
    }
  }
  for (const auto& [edit, count] : found) {
    if (count == edits_[edit].olds.size()) continue;
    fail(Code::kInvalidArgument,
         fmt::format("\"{}\" and the others it would be joined with are not in one optimizer group",
                     printable(edits_[edit].olds[0])));
  }
  return Value::list(std::move(items), value.kind());
}

Value MemberLists::rewrite_names(const Value& value) const {
  ValueList items;
  std::set<std::size_t> done;
  for (const Value& item : value.as_list()) {
    const Place* place = item.is_string() ? place_of(item.as_string()) : nullptr;
    if (place == nullptr) {
      items.push_back(item);
    } else if (done.insert(place->edit).second) {
      for (const std::string& made : edits_[place->edit].made) items.push_back(Value::string(made));
    }
  }
  return Value::list(std::move(items), value.kind());
}

}  // namespace tessera

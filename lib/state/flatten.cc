#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/base/text_index.h>
#include <tessera/state/value.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "lib/state/flattened_size.h"
#include "lib/state/key_text.h"
#include "lib/state/python_keys.h"

namespace tessera {
namespace {

using Kind = Value::Kind;

enum class Rule : std::uint8_t { kCurrent, kBefore24 };

/// root["a"][0][1]: how Python reaches it, so that "a.b" and "a" then "b" look different.
std::string python_path(const Path& path) {
  std::string text = "root";
  for (const PathItem& item : path) {
    if (item.kind == PathItem::Kind::kKey) {
      text += fmt::format("[\"{}\"]", printable(item.key));
    } else {
      text += fmt::format("[{}]", item.index);
    }
  }
  return text;
}

/// Items of all dicts and lists, those of a shared one once.
std::uint64_t count_items(const Value& root) {
  std::uint64_t items = 0;
  std::unordered_set<const void*> seen;
  std::vector<const Value*> open = {&root};
  while (!open.empty()) {
    const Value& value = *open.back();
    open.pop_back();
    const bool list = value.kind() == Kind::kList;
    if ((!list && !value.is_dict()) || !seen.insert(value.node_id()).second) continue;
    items += list ? value.as_list().size() : value.as_dict().size();
    if (list)
      for (const Value& item : value.as_list()) open.push_back(&item);
    else
      for (const auto& [key, item] : value.as_dict()) open.push_back(&item);
  }
  return items;
}

/// What a tree may expand to: a shared part counts for each place it stands in, and people share
/// small ones. A few kilobytes that double sixty times are no state.
std::uint64_t fair_share(const Value& root) {
  constexpr std::uint64_t kFree = std::uint64_t{1} << 16, kCopies = 16;
  return kFree + kCopies * count_items(root);
}

class Flattener {
 public:
  Flattener(Rule rule, const Value& root, ValueBudget& budget)
      : rule_(rule), budget_(budget), share_(fair_share(root)) {}

  StateDict run(const Value& root) {
    // The top is entered whatever it holds: its keys are the checkpoint's.
    if (root.is_dict()) {
      enter_dict(root);
    } else {
      visit(root);
    }
    return std::move(state_);
  }

 private:
  void spend(std::uint64_t n = 1) {
    budget_.spend(n);
    share_.spend(n);
  }

  void visit(const Value& value) {
    if (path_.size() > static_cast<std::size_t>(kMaxValueDepth))
      fail(Code::kCorrupt, fmt::format("nested deeper than {} levels", kMaxValueDepth));
    if (is_leaf(value, static_cast<int>(path_.size()))) {
      add_leaf(value);
    } else if (value.is_dict()) {
      enter_dict(value);
    } else {
      enter_list(value);
    }
  }

  void add_leaf(const Value& value) {
    SharedText name = dotted(path_);
    // An entry costs what it takes: long names and unusually deep paths count for more.
    constexpr std::size_t kUsualDepth = 16;
    spend(1 + name.size() / 64 + (std::max(path_.size(), kUsualDepth) - kUsualDepth) / 2);
    const auto known = by_name_.add(name, [this](std::size_t i) { return name_of(i); });
    if (known)
      fail(Code::kUnsupported,
           fmt::format("two leaves have the name \"{}\": {} and {}", printable(name),
                       python_path(state_.entries[*known].path), python_path(path_)),
           "rename one of the keys and save again: names are paths joined by dots here, as in "
           "PyTorch's sharded checkpoints");
    state_.entries.push_back({std::move(name), path_, value});
  }

  std::string_view name_of(std::size_t entry) const { return state_.entries[entry].name; }

  void enter_dict(const Value& dict) {
    spend();
    note_dict(dict);
    for (const auto& [key, value] : dict.as_dict()) {
      path_.push_back(path_item(key));
      visit(value);
      path_.pop_back();
    }
  }

  void enter_list(const Value& list) {
    spend();
    std::int64_t index = 0;
    for (const Value& value : list.as_list()) {
      path_.push_back(index_item(index++));
      visit(value);
      path_.pop_back();
    }
  }

  void note_dict(const Value& dict) {
    const ValueDict& items = dict.as_dict();
    if (dict.kind() != Kind::kDict) {
      note(dict.kind(), dict.attributes());
    } else if (items.empty()) {
      note(Kind::kDict, {});
    }
    ValueDict other_keys;
    for (const auto& [key, value] : items)
      if (!key.is_string() && !key.is_int())
        other_keys.emplace_back(Value::string(key_text(key)), key);
    if (!other_keys.empty()) require_different_keys(items);
    if (!other_keys.empty()) note(Kind::kDict, Value::dict(std::move(other_keys)));
  }

  void note(Kind kind, Value attributes) {
    spend(1 + path_.size() / 16);
    state_.containers.push_back({path_, kind, std::move(attributes), state_.entries.size()});
  }

  static PathItem path_item(const Value& key) {
    if (key.is_int()) return int_key_item(key.as_int());
    return key_item(key_text(key));
  }

  /// A leaf is stored as a whole. Asked once per shared node.
  bool is_leaf(const Value& value, int depth) {
    const bool list = value.kind() == Kind::kList;
    if (value.is_dict() && rule_ == Rule::kCurrent) return false;
    if (!value.is_dict() && !list) return true;
    if (depth > kMaxValueDepth)
      fail(Code::kCorrupt, fmt::format("nested deeper than {} levels", kMaxValueDepth));
    if (const auto known = leaf_.find(value.node_id()); known != leaf_.end()) return known->second;
    const auto opens = [&](const Value& entry) {
      spend();
      return entry.is_tensor() || !is_leaf(entry, depth + 1);
    };
    const bool leaf =
        list ? std::ranges::none_of(value.as_list(), opens)
             : std::ranges::none_of(value.as_dict(), opens, &ValueDict::value_type::second);
    leaf_.emplace(value.node_id(), leaf);
    return leaf;
  }

  Rule rule_;
  ValueBudget& budget_;
  ValueBudget share_;
  Path path_;
  StateDict state_;
  TextIndex by_name_;  // of state_.entries
  std::unordered_map<const void*, bool> leaf_;
};

/// Adds up what the Flattener of today's rule would make.
class FlattenedSize {
 public:
  explicit FlattenedSize(std::uint64_t most_bytes) : left_(most_bytes) {}

  /// `name_bytes`: of the names of all that `value` lies in. False once there is too much.
  bool add(const Value& value, std::size_t depth, std::size_t name_bytes) {
    if (depth > static_cast<std::size_t>(kMaxValueDepth)) return true;  // refused by flatten()
    const bool list = value.kind() == Kind::kList;
    if (depth > 0 && !value.is_dict() && (!list || !is_entered(value)))
      return spend(kEntryBytes + depth * sizeof(PathItem) + 2 * name_bytes);
    if (value.is_dict()) {
      if (value.as_dict().empty()) return spend(kEntryBytes + depth * sizeof(PathItem));
      for (const auto& [key, item] : value.as_dict())
        if (!add(item, depth + 1, name_bytes + (key.is_string() ? key.as_string().size() : 4)))
          return false;
    } else if (list) {
      for (const Value& item : value.as_list())
        if (!add(item, depth + 1, name_bytes + 4)) return false;
    }
    return true;
  }
  std::uint64_t entries() const { return entries_; }

 private:
  /// StateEntry, its place in the tables of names, and its rows in reports.
  static constexpr std::uint64_t kEntryBytes = 320;

  bool spend(std::uint64_t bytes) {
    ++entries_;
    if (bytes > left_) return false;
    left_ -= bytes;
    return true;
  }

  bool is_entered(const Value& list) {
    if (const auto known = entered_.find(list.node_id()); known != entered_.end())
      return known->second;
    const bool entered = std::ranges::any_of(list.as_list(), [&](const Value& item) {
      return item.is_tensor() || item.is_dict() || (item.kind() == Kind::kList && is_entered(item));
    });
    return entered_[list.node_id()] = entered;
  }

  std::uint64_t left_;
  std::uint64_t entries_ = 0;
  std::unordered_map<const void*, bool> entered_;
};

}  // namespace

bool flattens_within(const Value& root, std::uint64_t most_bytes) {
  FlattenedSize size(most_bytes);
  // What is larger than all there is stands in many places at once: flatten() refuses that as such.
  return size.add(root, 0, 0) || size.entries() > count_items(root);
}

StateDict flatten(const Value& root, ValueBudget& budget) {
  return Flattener(Rule::kCurrent, root, budget).run(root);
}

StateDict flatten_before_2_4(const Value& root, ValueBudget& budget) {
  return Flattener(Rule::kBefore24, root, budget).run(root);
}

}  // namespace tessera

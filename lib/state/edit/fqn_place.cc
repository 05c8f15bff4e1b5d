#include "lib/state/edit/fqn_place.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include <algorithm>
#include <unordered_set>

#include "lib/state/role_names.h"

namespace tessera {

bool lists_members(const EntryRole& role, const StateEntry& entry) {
  return role.role == Role::kOptimGroup && entry.value.kind() == Value::Kind::kList &&
         (role.leaf == "params" || role.leaf.empty());
}

std::size_t fqn_position(const StateEntry& entry, const EntryRole& role) {
  if (role.role == Role::kModel || role.leaf.empty()) return entry.name.size() - role.fqn.size();
  const std::string tail = role.fqn + "." + role.leaf;
  if (entry.name.ends_with(tail)) return entry.name.size() - tail.size();
  return entry.name.size() - role.fqn.size();  // leaf first
}

std::string renamed(const std::string& name, const std::string& old_fqn, const std::string& new_fqn,
                    std::size_t at) {
  return name.substr(0, at) + new_fqn + name.substr(at + old_fqn.size());
}

namespace {

/// `item` with another text: of its kind where that can be.
PathItem item_with(const PathItem& item, const std::string& text) {
  if (item.text() == text) return item;
  const auto number = item.kind == PathItem::Kind::kKey ? std::nullopt : decimal_number(text);
  if (!number) return key_item(text);
  return item.kind == PathItem::Kind::kIndex ? index_item(*number) : int_key_item(*number);
}

/// One item whose text has `length` characters from `at` on replaced.
PathItem renamed_item(const PathItem& item, std::size_t at, std::size_t length,
                      const std::string& new_fqn) {
  const std::string text = item.text();
  return item_with(item, renamed(text, text.substr(at, length), new_fqn, at));
}

std::size_t component_count(const std::string& text) {
  return static_cast<std::size_t>(std::ranges::count(text, '.')) + 1;
}

/// Items that spell an FQN, spelling another one. What both begin and end with keeps its items, so
/// that what lies beside them stays beside them; between, items keep their numbers of components
/// where that comes out even, and else each component is an item of its own.
class RunRenamer {
 public:
  RunRenamer(Path run, const std::string& new_fqn) : run_(std::move(run)) {
    for (std::string_view part : split(new_fqn, '.')) parts_.emplace_back(part);
    for (const PathItem& item : run_) dotted_key_ = dotted_key_ || component_count(item.text()) > 1;
  }

  Path rename() {
    std::size_t first = 0, first_part = 0, last = run_.size(), last_part = parts_.size();
    while (first + 1 < last) {
      const std::size_t count = component_count(run_[first].text());
      if (last_part - first_part <= count || text_of(first_part, count) != run_[first].text())
        break;
      first_part += count;
      ++first;
    }
    while (last > first) {
      const std::size_t count = component_count(run_[last - 1].text());
      if (last_part - first_part < count ||
          text_of(last_part - count, count) != run_[last - 1].text())
        break;
      last_part -= count;
      --last;
    }
    // What comes in between two items becomes part of the second where keys have dots: the weight
    // stays in its dict.
    if (dotted_key_ && first > 0 && first == last && first_part < last_part) {
      last_part += component_count(run_[last].text());
      ++last;
    }
    Path out(run_.begin(), run_.begin() + static_cast<std::ptrdiff_t>(first));
    add_middle(out, first, last, first_part, last_part);
    out.insert(out.end(), run_.begin() + static_cast<std::ptrdiff_t>(last), run_.end());
    return out;
  }

 private:
  std::string text_of(std::size_t part, std::size_t count) const {
    std::string text = parts_[part];
    for (std::size_t i = 1; i < count; ++i) text += "." + parts_[part + i];
    return text;
  }

  void add_middle(Path& out, std::size_t first, std::size_t last, std::size_t part,
                  std::size_t last_part) const {
    std::size_t components = 0;
    for (std::size_t i = first; i < last; ++i) components += component_count(run_[i].text());
    if (components == last_part - part) {
      for (std::size_t i = first; i < last; ++i) {
        const std::size_t count = component_count(run_[i].text());
        out.push_back(item_with(run_[i], text_of(part, count)));
        part += count;
      }
    } else if (last - first == 1 && dotted_key_ && part < last_part) {
      out.push_back(key_item(text_of(part, last_part - part)));
    } else {
      for (; part < last_part; ++part) out.push_back(key_item(parts_[part]));
    }
  }

  Path run_;
  std::vector<std::string> parts_;
  bool dotted_key_ = false;  // the format's dicts are flat: keys spell whole names
};

/// A path's start as text that no other path's start has.
std::string spelled(const Path& path, std::size_t items) {
  std::string text;
  for (std::size_t i = 0; i < items; ++i) {
    const std::string item = path[i].text();
    text += fmt::format("{}:{}", item.size(), item);
  }
  return text;
}

}  // namespace

Path renamed_path(const Path& path, std::size_t at, std::size_t length,
                  const std::string& new_fqn) {
  Path out;
  Path run;
  std::size_t begin = 0;
  for (const PathItem& item : path) {
    const std::size_t end = begin + item.text().size();
    if (begin <= at && at + length <= end) {  // all of the FQN is in this item
      out.push_back(renamed_item(item, at - begin, length, new_fqn));
    } else if (begin >= at && end <= at + length) {
      run.push_back(item);
      if (end == at + length)
        for (PathItem& fresh : RunRenamer(run, new_fqn).rename()) out.push_back(std::move(fresh));
    } else {
      out.push_back(item);
    }
    begin = end + 1;
  }
  return out;
}

namespace {

/// Every place that is a list by the index of an entry in it.
std::unordered_set<std::string> places_of_lists(const StateDict& state) {
  std::unordered_set<std::string> lists;
  for (const StateEntry& entry : state.entries)
    for (std::size_t k = 0; k < entry.path.size(); ++k)
      if (entry.path[k].kind == PathItem::Kind::kIndex) lists.insert(spelled(entry.path, k));
  return lists;
}

/// The item at `k`, which is in a list, as an index; what follows its number is a key of its own.
void enter_list(StateEntry& entry, std::size_t k) {
  const std::string key = entry.path[k].text();
  const std::size_t dot = std::min(key.find('.'), key.size());
  const PathItem index = item_with(index_item(-1), key.substr(0, dot));
  if (index.kind != PathItem::Kind::kIndex)
    fail(Code::kInvalidArgument,
         fmt::format("\"{}\" would lie in a list, which has numbers for names",
                     printable(entry.name)),
         "rename the whole list the same way, or choose other names");
  entry.path[k] = index;
  if (dot < key.size())
    entry.path.insert(entry.path.begin() + static_cast<std::ptrdiff_t>(k) + 1,
                      key_item(key.substr(dot + 1)));
}

}  // namespace

void settle_renamed(StateDict& state, const std::vector<bool>& renamed) {
  const std::unordered_set<std::string> lists = places_of_lists(state);
  std::unordered_set<std::string> leaves;
  for (std::size_t i = 0; i < state.entries.size(); ++i) {
    StateEntry& entry = state.entries[i];
    for (std::size_t k = 0; k < entry.path.size() && renamed[i] && !lists.empty(); ++k)
      if (entry.path[k].kind != PathItem::Kind::kIndex && lists.contains(spelled(entry.path, k)))
        enter_list(entry, k);
    leaves.insert(spelled(entry.path, entry.path.size()));
  }
  for (const StateEntry& entry : state.entries)
    for (std::size_t k = 1; k < entry.path.size(); ++k) {
      if (!leaves.contains(spelled(entry.path, k))) continue;
      const Path inner(entry.path.begin(), entry.path.begin() + static_cast<std::ptrdiff_t>(k));
      fail(Code::kInvalidArgument,
           fmt::format("\"{}\" would lie inside of \"{}\", which is a leaf", printable(entry.name),
                       printable(dotted(inner))),
           "choose other names, or leave one out with --exclude");
    }
}

}  // namespace tessera

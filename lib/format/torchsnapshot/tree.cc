#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <set>

#include "lib/format/torchsnapshot/parts.h"

namespace tessera::snapshot {
namespace {

constexpr int kMaxPathItems = 100;

/// One path, and what the ranks have there.
struct Node {
  std::string path;  // escaped, for messages
  std::map<std::string, std::uint32_t> children;
  std::vector<std::uint32_t> order;   // children as they first appear
  std::vector<const Entry*> entries;  // ascending ranks
};

/// What single ranks hold for themselves: nested dicts along paths.
struct PrivateTree {
  Value key;  // in its parent
  std::vector<PrivateTree> children;
  std::optional<Value> leaf;

  PrivateTree& at(const Value& name) {
    for (PrivateTree& child : children)
      if (child.key == name) return child;
    children.emplace_back().key = name;
    return children.back();
  }
  Value value() const {
    if (leaf) return *leaf;
    ValueDict out;
    for (const PrivateTree& child : children) out.emplace_back(child.key, child.value());
    return Value::dict(std::move(out));
  }
};

bool is_dict(const Entry& entry) {
  return entry.kind == Entry::Kind::kDict || entry.kind == Entry::Kind::kOrderedDict;
}

class Merger {
 public:
  Merger(const Metadata& metadata, LeafMaker& leaves, Findings& findings)
      : leaves_(leaves), findings_(findings) {
    nodes_.emplace_back();
    for (const Entry& entry : metadata.entries) insert(entry);
  }

  MergedRanks merge() {
    MergedRanks out;
    ValueDict root;
    for (const std::uint32_t child : nodes_[0].order) {
      const Value key = Value::string(unescape(nodes_[child].path));
      path_ = {key};
      add_child(root, key, child, false);
    }
    for (const auto& [rank, tree] : private_) {
      const std::string name = fmt::format("rank_{}", rank);
      for (const auto& [key, value] : root)
        if (key.is_string() && key.as_string() == name)
          fail(Code::kUnsupported, fmt::format("\"{}\" is a name of the snapshot's own", name));
      root.emplace_back(Value::string(name), tree.value());
      out.own.emplace(name, rank);
    }
    if (differing_ > 0)
      findings_.note(Finding::kRankEntries, Severity::kInfo,
                     fmt::format("{} entries differ from rank to rank; each rank's own is listed "
                                 "below rank_<R>, \"{}\" first",
                                 differing_, printable(first_differing_)));
    out.tree = Value::dict(std::move(root));
    return out;
  }

 private:
  /// What is merged; nullopt when ranks differ inside.
  using Merged = std::optional<Value>;

  void insert(const Entry& entry) {
    std::uint32_t at = 0;
    int items = 0;
    for (std::size_t begin = 0; begin <= entry.path.size();) {
      const std::size_t end = std::min(entry.path.find('/', begin), entry.path.size());
      const std::string item = entry.path.substr(begin, end - begin);
      if (++items > kMaxPathItems)
        in_tensor(entry.path, [] { fail(Code::kCorrupt, "its path is nested too deeply"); });
      const auto next = static_cast<std::uint32_t>(nodes_.size());
      const auto [found, is_new] = nodes_[at].children.emplace(item, next);
      const std::uint32_t child = found->second;
      if (is_new) {
        nodes_[at].order.push_back(child);
        nodes_.emplace_back().path = entry.path.substr(0, end);
      }
      at = child;
      begin = end + 1;
    }
    auto& entries = nodes_[at].entries;
    const auto place = std::ranges::upper_bound(entries, entry.rank, {},
                                                [](const Entry* known) { return known->rank; });
    entries.insert(place, &entry);
  }

  /// Merges the child in, or notes what each rank has there. False: the ranks differ, and `whole`
  /// asks for all or nothing.
  bool add_child(ValueDict& out, const Value& key, std::uint32_t child, bool whole) {
    const Merged merged = merge(child, whole);
    if (merged) {
      if (!merged->is_none() || !lost_.contains(child)) out.emplace_back(key, *merged);
      return true;
    }
    if (whole) return false;
    if (differing_++ == 0) first_differing_ = nodes_[child].path;
    for (const std::int64_t rank : ranks_of(child)) {
      PrivateTree* tree = &private_[rank];
      for (const Value& item : path_) tree = &tree->at(item);
      if (auto value = own_value(child, rank)) tree->leaf = std::move(value);
    }
    return true;
  }

  std::vector<std::int64_t> ranks_of(std::uint32_t node) const {
    std::vector<std::int64_t> ranks;
    for (const Entry* entry : nodes_[node].entries) ranks.push_back(entry->rank);
    return ranks;
  }

  Merged merge(std::uint32_t node, bool whole) {
    const auto& entries = nodes_[node].entries;
    if (entries.empty())
      in_tensor(nodes_[node].path, [] { fail(Code::kCorrupt, "no rank says what holds it"); });
    const Entry& first = *entries[0];
    const auto same_kind = [&](const Entry* e) { return e->kind == first.kind; };
    if (!std::ranges::all_of(entries, same_kind)) return std::nullopt;
    if (is_dict(first)) return merge_dict(node, whole);
    if (first.kind == Entry::Kind::kList) return merge_list(node);
    return merge_leaf(node);
  }

  Merged merge_dict(std::uint32_t node, bool whole) {
    ValueDict out;
    std::set<std::string> seen;
    for (const Entry* entry : nodes_[node].entries) {
      for (const Value& key : entry->keys) {
        const std::string item =
            key.is_int() ? fmt::format("{}", key.as_int()) : escape(key.as_string());
        if (!seen.insert(item).second) continue;
        const auto child = nodes_[node].children.find(item);
        if (child == nodes_[node].children.end()) {
          findings_.error(Finding::kUnplaced,
                          fmt::format("rank {} lists it, but has no entry for it", entry->rank), {},
                          nodes_[node].path + "/" + item);
          continue;
        }
        path_.push_back(key);
        const bool taken = add_child(out, key, child->second, whole);
        path_.pop_back();
        if (!taken) return std::nullopt;
      }
    }
    for (const auto& [item, child] : nodes_[node].children)
      if (!seen.contains(item))
        findings_.note(Finding::kUnusedEntry, Severity::kWarning, "no rank lists it among its keys",
                       {}, nodes_[child].path);
    return container(*nodes_[node].entries[0], std::move(out));
  }
  static Value container(const Entry& entry, ValueDict items) {
    return entry.kind == Entry::Kind::kDict ? Value::dict(std::move(items))
                                            : Value::ordered_dict(std::move(items), {});
  }

  /// Children of a list by index, for one rank (-1: of any). Replicated items are rank 0's alone.
  std::vector<std::uint32_t> items_of(std::uint32_t node, std::int64_t rank) const {
    std::map<std::uint64_t, std::uint32_t> items;
    for (const auto& [text, child] : nodes_[node].children) {
      std::uint64_t index = 0;
      std::from_chars(text.data(), text.data() + text.size(), index);
      if (!is_decimal(text) || fmt::format("{}", index) != text)
        in_tensor(nodes_[child].path, [] { fail(Code::kCorrupt, "no index of a list"); });
      if (rank < 0 || entry_of(child, rank) != nullptr) items.emplace(index, child);
    }
    std::vector<std::uint32_t> out;
    for (const auto& [index, child] : items) {
      if (index != out.size())
        in_tensor(nodes_[node].path,
                  [&] { fail(Code::kCorrupt, fmt::format("item {} is missing", out.size())); });
      out.push_back(child);
    }
    return out;
  }

  /// The rank's own entry, or the one that stands for all ranks.
  const Entry* entry_of(std::uint32_t node, std::int64_t rank) const {
    const auto& entries = nodes_[node].entries;
    for (const Entry* entry : entries)
      if (entry->rank == rank) return entry;
    if (!entries.empty() && entries[0]->replicated) return entries[0];
    return nullptr;
  }

  Merged merge_list(std::uint32_t node) {
    const std::vector<std::uint32_t> all = items_of(node, -1);
    for (const Entry* entry : nodes_[node].entries)
      if (items_of(node, entry->rank) != all) return std::nullopt;
    ValueList out;
    for (const std::uint32_t child : all) {
      Merged item = merge(child, true);
      if (!item) return std::nullopt;
      out.push_back(std::move(*item));
    }
    return Value::list(std::move(out));
  }

  Merged merge_leaf(std::uint32_t node) {
    const auto& entries = nodes_[node].entries;
    const Entry& first = *entries[0];
    return in_tensor(first.path, [&]() -> Merged {
      if (first.kind == Entry::Kind::kSharded) return made(node, leaves_.tensor(entries));
      const bool replicated = first.replicated;
      if (replicated) {
        check_replicas(entries);
      } else {
        for (std::size_t i = 1; i < entries.size(); ++i)
          if (!leaves_.same(first, *entries[i])) return std::nullopt;
      }
      if (first.kind == Entry::Kind::kPrimitive) return first.primitive;
      if (first.kind == Entry::Kind::kObject) return made(node, any_object(entries));
      return made(node, leaves_.tensor(replicated ? std::vector<const Entry*>{&first} : entries));
    });
  }
  /// Declared replicated, the lowest rank's entry counts; one that says otherwise is not lost
  /// silently.
  void check_replicas(const std::vector<const Entry*>& entries) {
    for (std::size_t i = 1; i < entries.size(); ++i) {
      if (leaves_.same(*entries[0], *entries[i])) continue;
      findings_.note(Finding::kDifferentValues, Severity::kWarning,
                     fmt::format("rank {} holds something else than rank {}, though it is declared "
                                 "replicated; rank {}'s is used",
                                 entries[i]->rank, entries[0]->rank, entries[0]->rank),
                     {}, entries[i]->path);
    }
  }
  std::optional<Value> any_object(const std::vector<const Entry*>& entries) {
    for (const Entry* entry : entries)
      if (auto value = leaves_.object(*entry)) return value;
    return std::nullopt;
  }
  /// A leaf that could not be made has its finding; the tree goes on without it.
  Value made(std::uint32_t node, std::optional<Value> value) {
    if (value) return std::move(*value);
    lost_.insert(node);
    return {};
  }

  /// What one rank holds; what is not its own is left to the merged tree.
  std::optional<Value> own_value(std::uint32_t node, std::int64_t rank) {
    const Entry* entry = entry_of(node, rank);
    if (entry == nullptr) return std::nullopt;
    if (entry->kind == Entry::Kind::kList) {
      ValueList out;
      for (const std::uint32_t child : items_of(node, rank))
        if (auto value = own_value(child, rank)) out.push_back(std::move(*value));
      return Value::list(std::move(out));
    }
    if (is_dict(*entry)) {
      ValueDict out;
      for (const Value& key : entry->keys) {
        const std::string item =
            key.is_int() ? fmt::format("{}", key.as_int()) : escape(key.as_string());
        const auto child = nodes_[node].children.find(item);
        if (child == nodes_[node].children.end()) continue;
        if (auto value = own_value(child->second, rank)) out.emplace_back(key, std::move(*value));
      }
      return container(*entry, std::move(out));
    }
    return in_tensor(entry->path, [&]() -> std::optional<Value> {
      if (entry->kind == Entry::Kind::kPrimitive) return entry->primitive;
      if (entry->kind == Entry::Kind::kObject) return leaves_.object(*entry);
      if (entry->kind == Entry::Kind::kSharded) return leaves_.tensor(nodes_[node].entries);
      return leaves_.tensor({entry});
    });
  }

  LeafMaker& leaves_;
  Findings& findings_;
  std::vector<Node> nodes_;
  std::vector<Value> path_;  // keys down to the node that is being merged
  std::map<std::int64_t, PrivateTree> private_;
  std::set<std::uint32_t> lost_;
  std::uint64_t differing_ = 0;  // nodes that are each rank's own
  std::string first_differing_;
};

}  // namespace

MergedRanks merge_ranks(const Metadata& metadata, LeafMaker& leaves, Findings& findings) {
  return Merger(metadata, leaves, findings).merge();
}

}  // namespace tessera::snapshot

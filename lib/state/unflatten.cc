#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/state/value.h>

#include <algorithm>
#include <functional>
#include <unordered_map>

namespace tessera {
namespace {

/// A tree of containers under construction; nodes refer to each other by number.
class TreeBuilder {
 public:
  explicit TreeBuilder(std::size_t entries) : gaps_left_(kFreeGaps + 16 * entries) {
    nodes_.emplace_back();
  }

  void add_leaf(const Path& path, const Value& value) {
    Node& node = nodes_[reach(path)];
    if (node.form != Form::kUnknown) conflict(path);
    node.form = Form::kLeaf;
    node.value = value;
  }

  void add_note(const ContainerNote& note) {
    const std::size_t id = reach(note.path);
    be(id, Form::kDict, note.path);
    Node& node = nodes_[id];
    if (note.kind != Value::Kind::kDict) {
      node.kind = note.kind;
      node.value = note.attributes;
    } else if (note.attributes.is_dict()) {
      node.other_keys = note.attributes;
    }
  }

  Value build(std::size_t id = 0) const {
    const Node& node = nodes_[id];
    switch (node.form) {
      case Form::kLeaf:
        return node.value;
      case Form::kList:
        return build_list(node);
      default:
        return build_dict(node);
    }
  }

 private:
  enum class Form : std::uint8_t { kUnknown, kLeaf, kDict, kList };
  struct Child {
    PathItem item;
    std::size_t node;
  };
  struct Node {
    Form form = Form::kUnknown;
    Value::Kind kind = Value::Kind::kDict;  // of a dict
    Value value;                            // kLeaf: the leaf; a dict: its attributes
    Value other_keys;  // text -> key, for keys that are neither strings nor integers
    std::vector<Child> children;
    std::int64_t list_size = 0;
  };
  struct Step {
    std::size_t parent;
    PathItem item;
    bool operator==(const Step&) const = default;
  };
  struct StepHash {
    std::size_t operator()(const Step& step) const {
      std::size_t hash = std::hash<std::string>{}(step.item.key);
      const auto mix = [&hash](std::size_t v) {
        hash ^= v + 0x9E3779B97F4A7C15u + (hash << 6) + (hash >> 2);
      };
      mix(std::hash<std::int64_t>{}(step.item.index));
      mix(static_cast<std::size_t>(step.item.kind));
      mix(step.parent);
      return hash;
    }
  };

  [[noreturn]] static void conflict(const Path& path) {
    fail(Code::kCorrupt, fmt::format("\"{}\" is both a value and a container, or both a list and a "
                                     "dict, in the flattened state",
                                     printable(dotted(path))));
  }

  void be(std::size_t id, Form form, const Path& path) {
    if (nodes_[id].form == Form::kUnknown) nodes_[id].form = form;
    if (nodes_[id].form != form) conflict(path);
  }

  /// The node at `path`, made with its ancestors where absent.
  std::size_t reach(const Path& path) {
    if (path.size() > static_cast<std::size_t>(kMaxValueDepth) + 1)
      fail(Code::kCorrupt, fmt::format("nested deeper than {} levels", kMaxValueDepth));
    std::size_t at = 0;
    for (const PathItem& item : path) {
      const bool index = item.kind == PathItem::Kind::kIndex;
      be(at, index ? Form::kList : Form::kDict, path);
      const auto [found, added] = steps_.try_emplace(Step{at, item}, nodes_.size());
      if (added) {
        if (index) extend(nodes_[at], item.index, path);
        nodes_[at].children.push_back({item, nodes_.size()});
        nodes_.emplace_back();
      }
      at = found->second;
    }
    return at;
  }

  /// A declared index costs memory: gaps are bounded by what is there.
  void extend(Node& list, std::int64_t index, const Path& path) {
    if (index < list.list_size) {
      if (index < 0)
        fail(Code::kCorrupt, fmt::format("negative list index in \"{}\"", dotted(path)));
      return;
    }
    const auto gap = static_cast<std::uint64_t>(index - list.list_size);
    if (gap > gaps_left_)
      fail(Code::kCorrupt, fmt::format("list index {} of \"{}\" leaves too many entries empty",
                                       index, printable(dotted(path))));
    gaps_left_ -= gap;
    list.list_size = index + 1;
  }

  Value build_list(const Node& node) const {
    ValueList items(static_cast<std::size_t>(node.list_size));
    for (const Child& child : node.children)
      items[static_cast<std::size_t>(child.item.index)] = build(child.node);
    return Value::list(std::move(items));
  }

  Value build_dict(const Node& node) const {
    ValueDict items;
    items.reserve(node.children.size());
    for (const Child& child : node.children)
      items.emplace_back(key(node, child), build(child.node));
    return Value::dict_of(node.kind, std::move(items), node.value);
  }

  static Value key(const Node& node, const Child& child) {
    if (child.item.kind == PathItem::Kind::kIntKey) return Value::integer(child.item.index);
    const Value* other = node.other_keys.find(child.item.key);
    return other != nullptr ? *other : Value::string(child.item.key);
  }

  static constexpr std::uint64_t kFreeGaps = 1'000'000;

  std::vector<Node> nodes_;
  std::unordered_map<Step, std::size_t, StepHash> steps_;
  std::uint64_t gaps_left_;
};

}  // namespace

Value unflatten(const StateDict& state) {
  TreeBuilder tree(state.entries.size());
  // Notes stand where their container stood among the entries, outer ones first.
  std::vector<const ContainerNote*> notes;
  for (const ContainerNote& note : state.containers) notes.push_back(&note);
  std::ranges::stable_sort(notes, {}, &ContainerNote::entries_before);
  auto note = notes.begin();
  for (std::size_t i = 0; i < state.entries.size(); ++i) {
    for (; note != notes.end() && (*note)->entries_before <= i; ++note) tree.add_note(**note);
    tree.add_leaf(state.entries[i].path, state.entries[i].value);
  }
  for (; note != notes.end(); ++note) tree.add_note(**note);
  return tree.build();
}

}  // namespace tessera

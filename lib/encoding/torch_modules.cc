#include "lib/encoding/torch_modules.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "lib/encoding/pickle_memory.h"

namespace tessera {
namespace {

using Node = PickleGraph::Node;

constexpr std::uint64_t kFreeEntries = std::uint64_t{1} << 16;
constexpr std::uint64_t kCopies = 16;         // of each object of the pickle
constexpr std::uint64_t kEntryBytes = 192;    // of names and nodes, with what allocators add
constexpr std::size_t kModulesNamed = 8;      // in a message
constexpr std::size_t kMostRemembered = 256;  // names of attributes

/// Modules whose classes do with their state what torch.nn.Module does. Not torch.nn.quantized, whose
/// weights lie in packed objects.
constexpr std::array kModules = {std::string_view("torch.nn.modules."),
                                 std::string_view("torch.nn.parallel."),
                                 std::string_view("torch.nn.utils.parametriz")};

/// Instance attributes that would stand before the methods of these names.
constexpr std::array kMethods = {std::string_view("state_dict"),
                                 std::string_view("_save_to_state_dict"),
                                 std::string_view("get_extra_state")};

constexpr std::array kStateKeys = {std::string_view("_parameters"), std::string_view("_buffers"),
                                   std::string_view("_modules"),
                                   std::string_view("_non_persistent_buffers_set")};

bool is_module_class(std::pair<std::string_view, std::string_view> global) {
  return std::ranges::any_of(kModules,
                             [&](std::string_view m) { return global.first.starts_with(m); });
}

/// The class of which `node` is made without arguments, as pickle makes modules; nullopt for others.
std::optional<Node> class_node(const PickleGraph& graph, Node node) {
  if (graph.kind(node) == PickleKind::kNewObj && graph.items(graph.arguments(node)).empty() &&
      !graph.keyword_arguments(node)) {
    const Node made = graph.callable(node);
    return graph.kind(made) == PickleKind::kGlobal ? std::optional(made) : std::nullopt;
  }
  // Protocols 0 and 1: copyreg._reconstructor(class, object, None).
  if (graph.kind(node) != PickleKind::kReduce || !graph.is_call(node, "copyreg", "_reconstructor"))
    return std::nullopt;
  const auto arguments = graph.items(graph.arguments(node));
  const bool plain = arguments.size() == 3 && graph.kind(arguments[0]) == PickleKind::kGlobal &&
                     graph.is_global(arguments[1], "builtins", "object") &&
                     graph.kind(arguments[2]) == PickleKind::kNone;
  return plain ? std::optional(arguments[0]) : std::nullopt;
}

std::string class_name(const PickleGraph& graph, Node node) {
  const auto made = class_node(graph, node);
  if (!made) return "an object";
  const auto [module, name] = graph.global(*made);
  return fmt::format("{}.{}", printable(module), printable(name));
}

std::string key_name(const PickleGraph& graph, Node key) {
  if (graph.kind(key) == PickleKind::kString) return std::string(graph.text(key));
  if (graph.kind(key) == PickleKind::kInt) return fmt::to_string(graph.integer(key));
  return "?";
}

std::string joined(const std::string& place, const std::string& name) {
  return place.empty() || name.empty() ? place + name : fmt::format("{}.{}", place, name);
}

}  // namespace

TorchModules::TorchModules(const PickleGraph& graph, TensorResolver& resolver,
                           TorchArchive& archive, std::uint64_t limit_bytes)
    : graph_(graph),
      resolver_(resolver),
      archive_(archive),
      limit_bytes_(limit_bytes),
      left_bytes_(pickle_memory_bytes(stream_bytes(graph), limit_bytes)),
      budget_(kFreeEntries + kCopies * graph.node_count()) {
  if (any_module()) find_places();
}

const ModuleEntries* TorchModules::find(Node node) const {
  const auto found = trees_.find(node);
  return found == trees_.end() ? nullptr : &found->second.entries;
}

std::string TorchModules::only_unread(Node root) const {
  const auto found = trees_.find(root);
  if (found == trees_.end()) return "";
  const Tree& tree = found->second;
  const bool all = !tree.unread.empty() && tree.unread.size() == tree.entries.size();
  return all ? class_name(graph_, tree.entries[tree.unread[0]].second) : "";
}

bool TorchModules::any_module() const {
  for (Node node = 0; node < graph_.node_count(); ++node)
    if (graph_.kind(node) == PickleKind::kGlobal && is_module_class(graph_.global(node)))
      return true;
  return false;
}

/// Goes through each dict and list once; a module takes the name of its first place.
void TorchModules::find_places() {
  struct Visit {
    Node node;
    std::size_t parent;  // in `visits`
    Node key;            // of a dict's entry
    std::int64_t index;  // of a list's, else -1
  };
  std::vector<Visit> visits = {{graph_.root(), 0, graph_.root(), -1}};
  std::unordered_set<Node> seen = {graph_.root()};
  const auto place_of = [&](std::size_t at) {
    std::string place;
    for (int levels = 0; at != 0 && levels < kMaxValueDepth; at = visits[at].parent, ++levels) {
      const Visit& v = visits[at];
      place = joined(v.index < 0 ? key_name(graph_, v.key) : fmt::to_string(v.index), place);
    }
    return place;
  };
  for (std::size_t at = 0; at < visits.size(); ++at) {
    const Node node = visits[at].node;
    if (!is_open_container(graph_, node)) {
      if (auto tree = read(node)) {
        report(node, place_of(at), *tree);
        trees_.emplace(node, std::move(*tree));
      }
      continue;
    }
    const auto pairs = graph_.dict_items(node);
    for (std::size_t i = 0; i + 1 < pairs.size(); i += 2)
      if (seen.insert(pairs[i + 1]).second) visits.push_back({pairs[i + 1], at, pairs[i], -1});
    if (graph_.kind(node) != PickleKind::kList) continue;
    const auto items = graph_.items(node);
    for (std::size_t i = 0; i < items.size(); ++i)
      if (seen.insert(items[i]).second)
        visits.push_back({items[i], at, items[i], static_cast<std::int64_t>(i)});
  }
}

/// A dict, or the OrderedDict of older releases, with every key a string and there once.
bool TorchModules::is_plain_dict(Node node) const {
  const bool ordered = graph_.is_call(node, "collections", "OrderedDict") &&
                       graph_.items(graph_.arguments(node)).empty() && !graph_.state(node);
  if (graph_.kind(node) != PickleKind::kDict && !ordered) return false;
  std::unordered_set<std::string_view> keys;
  const auto pairs = graph_.dict_items(node);
  for (std::size_t i = 0; i < pairs.size(); i += 2)
    if (graph_.kind(pairs[i]) != PickleKind::kString || !keys.insert(graph_.text(pairs[i])).second)
      return false;
  return true;
}

/// Hooks that state_dict() runs, but for one that writes a version number alone.
bool TorchModules::has_hooks(Node state, std::string_view key) const {
  const auto hooks = graph_.find(state, key);
  if (!hooks || graph_.kind(*hooks) == PickleKind::kNone) return false;
  if (graph_.kind(*hooks) != PickleKind::kDict &&
      !graph_.is_call(*hooks, "collections", "OrderedDict"))
    return true;
  const auto pairs = graph_.dict_items(*hooks);
  if (graph_.kind(*hooks) != PickleKind::kDict && !graph_.items(graph_.arguments(*hooks)).empty())
    return true;
  for (std::size_t i = 1; i < pairs.size(); i += 2)
    if (!graph_.is_call(pairs[i], "torch.nn.utils.spectral_norm", "SpectralNormStateDictHook"))
      return true;
  return false;
}

std::optional<TorchModules::Parts> TorchModules::parts_of(Node node) const {
  const auto made = class_node(graph_, node);
  const auto state = made ? graph_.state(node) : std::nullopt;
  if (!state || !is_module_class(graph_.global(*made)) || !is_plain_dict(*state) ||
      !graph_.items(node).empty() || !graph_.dict_items(node).empty())
    return std::nullopt;
  const auto parameters = graph_.find(*state, "_parameters");
  const auto buffers = graph_.find(*state, "_buffers");
  const auto modules = graph_.find(*state, "_modules");
  for (const auto& part : {parameters, buffers, modules})
    if (!part || !is_plain_dict(*part)) return std::nullopt;
  if (has_hooks(*state, "_state_dict_hooks") || has_hooks(*state, "_state_dict_pre_hooks"))
    return std::nullopt;
  for (const std::string_view method : kMethods)
    if (graph_.find(*state, method)) return std::nullopt;
  Parts parts{*parameters, *buffers, *modules, {}};
  const auto unsaved = graph_.find(*state, "_non_persistent_buffers_set");
  if (!unsaved) return parts;
  std::span<const Node> names = graph_.items(*unsaved);
  if (graph_.is_call(*unsaved, "builtins", "set") && !graph_.state(*unsaved)) {
    const auto arguments = graph_.items(graph_.arguments(*unsaved));
    if (arguments.size() > 1) return std::nullopt;
    if (!arguments.empty()) names = graph_.items(arguments[0]);
  } else if (graph_.kind(*unsaved) != PickleKind::kSet) {
    return std::nullopt;
  }
  for (const Node name : names) {
    if (graph_.kind(name) != PickleKind::kString) return std::nullopt;
    parts.unsaved.insert(graph_.text(name));
  }
  return parts;
}

void TorchModules::add(std::string name, Node value, Tree& tree) {
  budget_.spend(1 + name.size() / 64);
  const std::uint64_t bytes = kEntryBytes + 2 * name.size();
  if (bytes > left_bytes_) refuse_pickle_memory(stream_bytes(graph_), limit_bytes_);
  left_bytes_ -= bytes;
  tree.entries.emplace_back(std::move(name), value);
}

void TorchModules::leave_out(std::string name, Node value, std::string_view why, Tree& tree) {
  const auto tensor = resolver_(value);
  if (!tensor || !tensor->is_tensor()) return;
  const ArchiveTensor& left = archive_.tensors[tensor->tensor_index()];
  budget_.spend(1 + name.size() / 64);
  tree.left_out.push_back(
      {LeftOut::Kind::kTensor, std::move(name), std::string(why), 0,
       static_cast<std::uint64_t>(TensorSpec{left.dtype, left.shape}.size_bytes())});
}

/// Adds what the module itself holds, and goes into it.
void TorchModules::open(Node node, Parts parts, std::string prefix, Tree& tree,
                        std::vector<Open>& path) {
  ++tree.modules;
  budget_.spend(1 + prefix.size() / 64);
  const auto add_all = [&](Node dict, const std::unordered_set<std::string_view>& unsaved) {
    const auto pairs = graph_.dict_items(dict);
    for (std::size_t i = 0; i + 1 < pairs.size(); i += 2) {
      if (graph_.kind(pairs[i + 1]) == PickleKind::kNone) continue;
      std::string name = prefix + std::string(graph_.text(pairs[i]));
      if (unsaved.contains(graph_.text(pairs[i])))
        leave_out(std::move(name), pairs[i + 1], "a buffer that its module does not save", tree);
      else
        add(std::move(name), pairs[i + 1], tree);
    }
  };
  add_all(parts.parameters, {});
  add_all(parts.buffers, parts.unsaved);
  const auto state = graph_.dict_items(*graph_.state(node));
  for (std::size_t i = 0; i + 1 < state.size(); i += 2) {
    const std::string_view key = graph_.text(state[i]);
    if (std::ranges::find(kStateKeys, key) != kStateKeys.end()) continue;
    if (tree.attributes.size() < kMostRemembered) tree.attributes.emplace(key);
    leave_out(prefix + std::string(key), state[i + 1],
              "a tensor that its module keeps beside its parameters and buffers", tree);
  }
  path.push_back({std::move(parts), node, std::move(prefix), 0});
}

/// nullopt: no module that is understood, or one within itself.
std::optional<TorchModules::Tree> TorchModules::read(Node root) {
  auto parts = parts_of(root);
  if (!parts) return std::nullopt;
  Tree tree;
  std::vector<Open> path;
  open(root, std::move(*parts), "", tree, path);
  while (!path.empty()) {
    const auto children = graph_.dict_items(path.back().parts.modules);
    if (path.back().next + 1 >= children.size()) {
      path.pop_back();
      continue;
    }
    const std::size_t at = std::exchange(path.back().next, path.back().next + 2);
    const Node child = children[at + 1];
    if (graph_.kind(child) == PickleKind::kNone) continue;
    const bool within_itself = std::ranges::find(path, child, &Open::node) != path.end();
    if (within_itself || path.size() >= kMaxValueDepth) return std::nullopt;
    std::string name = path.back().prefix + std::string(graph_.text(children[at]));
    if (auto inner = parts_of(child)) {
      open(child, std::move(*inner), name + '.', tree, path);
    } else {
      tree.unread.push_back(tree.entries.size());
      add(std::move(name), child, tree);
    }
  }
  std::unordered_set<std::string_view> names;
  for (const auto& [name, value] : tree.entries)
    if (!names.insert(name).second) return std::nullopt;
  return tree;
}

void TorchModules::report(Node root, const std::string& place, Tree& tree) {
  const std::string whole =
      place.empty() ? "the saved object" : fmt::format("\"{}\"", printable(place));
  std::vector<std::string> attributes(tree.attributes.begin(), tree.attributes.end());
  std::ranges::sort(attributes);
  const bool more = attributes.size() > kModulesNamed;
  attributes.resize(std::min(attributes.size(), kModulesNamed));
  for (std::string& name : attributes) name = printable(name);
  std::string text = fmt::format(
      "{} is a {}: read as its state_dict(); what its {} {} besides is not read ({}{})", whole,
      class_name(graph_, root), tree.modules, tree.modules == 1 ? "module holds" : "modules hold",
      fmt::join(attributes, ", "), more ? ", .." : "");
  for (std::size_t i = 0; i < std::min(tree.unread.size(), kModulesNamed); ++i) {
    const auto& [name, value] = tree.entries[tree.unread[i]];
    text += fmt::format("{} \"{}\" (a {})", i == 0 ? "; modules that stay objects:" : ",",
                        printable(joined(place, name)), class_name(graph_, value));
  }
  if (tree.unread.size() > kModulesNamed) text += ", ..";
  const Severity severity = tree.unread.empty() ? Severity::kInfo : Severity::kWarning;
  archive_.notes.push_back({Finding::kTensorAttributes, severity, std::move(text), {}, {}});
  for (LeftOut& left : tree.left_out) left.name = joined(place, left.name);
  std::ranges::move(tree.left_out, std::back_inserter(archive_.left_out));
  tree.left_out.clear();
  archive_.left_out.push_back({LeftOut::Kind::kAttribute,
                               place.empty() ? class_name(graph_, root) : place,
                               std::string(kLeftByModules), 0, 0});
}

}  // namespace tessera

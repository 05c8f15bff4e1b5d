// Subclasses that wrap other tensors (torch.Tensor._make_wrapper_subclass), as pickle keeps them:
//
//   torch._tensor._rebuild_from_type_v2(torch._utils._rebuild_wrapper_subclass, CLASS,
//       (CLASS, dtype, size, stride, offset, layout, device, requires_grad), STATE)
//
// The wrapper has no bytes: they are the tensors in STATE, its attributes. Nothing of the class is
// run, so only the structure speaks.
#include <tessera/base/error.h>

#include <unordered_set>

#include "lib/encoding/torch_tensors.h"

namespace tessera {
namespace {

using Node = PickleGraph::Node;

/// More objects below an attribute are not looked through: it counts as one with tensors inside.
constexpr std::size_t kMostInAttribute = 4096;

bool is_object(PickleKind kind) {
  return kind == PickleKind::kReduce || kind == PickleKind::kNewObj;
}

/// Their parts are places in a larger tensor: formats read them.
bool is_sharded_class(std::string_view name) {
  return name == "DTensor" || name == "ShardedTensor";
}

/// A tensor's state: its __dict__, or a tuple of that and of its slots.
std::vector<Node> attribute_values(const PickleGraph& graph, Node state) {
  std::vector<Node> values;
  const auto add = [&](Node part) {
    if (graph.kind(part) != PickleKind::kDict) return;
    const auto items = graph.dict_items(part);
    for (std::size_t i = 1; i < items.size(); i += 2) values.push_back(items[i]);
  };
  if (graph.kind(state) != PickleKind::kTuple) {
    add(state);
  } else {
    for (const Node part : graph.items(state)) add(part);
  }
  return values;
}

}  // namespace

/// The tensor inside where the wrapper holds one alone, of its own type and shape: a weight that is
/// quantized when it is gathered, and whatever else changes how a tensor computes and not what it
/// holds. Others stay objects: codes, scales and tables together are the values of theirs.
std::optional<ArchiveTensor> TensorResolver::make_wrapped(std::span<const Node> arguments,
                                                          int depth) {
  if (arguments.size() < 4 || graph_.kind(arguments[2]) != PickleKind::kTuple ||
      is_sharded_class(graph_.global(arguments[1]).second))
    return std::nullopt;
  const auto wrapper = graph_.items(arguments[2]);
  if (wrapper.size() < 3 || graph_.kind(wrapper[1]) != PickleKind::kGlobal) return std::nullopt;
  std::optional<std::uint32_t> inside;
  for (const Node value : attribute_values(graph_, arguments[3])) {
    const auto found = is_object(graph_.kind(value)) ? tensor(value, depth + 1) : std::nullopt;
    if (!found && !holds_storage(value)) continue;
    if (!found || inside) return std::nullopt;
    inside = found;
  }
  if (!inside) return std::nullopt;
  ArchiveTensor made = archive_.tensors[*inside];
  if (made.quant >= 0 || made.dtype != dtype(wrapper[1]) ||
      made.shape != Shape::checked(integers(wrapper[2], "a size")))
    return std::nullopt;
  if (wrapper.size() > 7) made.requires_grad = flag(wrapper[7]);
  note_subclass(arguments[1]);
  return made;
}

/// Whether a storage hangs below `node`, or too much to see that none does.
bool TensorResolver::holds_storage(Node node) const {
  std::unordered_set<Node> seen{node};
  std::vector<Node> open{node};
  const auto visit = [&](std::span<const Node> nodes) {
    for (const Node inner : nodes)
      if (seen.insert(inner).second) open.push_back(inner);
  };
  while (!open.empty()) {
    if (seen.size() > kMostInAttribute) return true;
    const Node at = open.back();
    open.pop_back();
    const PickleKind kind = graph_.kind(at);
    if (kind == PickleKind::kPersistentId) return true;
    if (is_object(kind)) {
      visit({{graph_.callable(at), graph_.arguments(at)}});
      if (const auto state = graph_.state(at)) visit({{*state}});
    }
    visit(graph_.items(at));
    visit(graph_.dict_items(at));
  }
  return false;
}

}  // namespace tessera

// Nodes of a torch pickle that must be of one kind: numbers, sizes, flags, dtypes.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include "lib/encoding/torch_tensors.h"

namespace tessera {
void TensorResolver::corrupt(const std::string& what) { fail(Code::kCorrupt, what); }

bool TensorResolver::is_call(PickleKind kind) {
  return kind == PickleKind::kReduce || kind == PickleKind::kNewObj;
}

void TensorResolver::need_arguments(std::span<const Node> arguments, std::size_t count,
                                    std::string_view function) {
  if (arguments.size() < count)
    corrupt(fmt::format("{} with {} arguments", function, arguments.size()));
}

DType TensorResolver::dtype(Node node) const {
  if (graph_.kind(node) != PickleKind::kGlobal) corrupt("a dtype that is no global");
  const auto [module, name] = graph_.global(node);
  const auto found = module == "torch" ? dtype_from_torch_name(name) : std::nullopt;
  if (!found)
    fail(Code::kUnsupported, fmt::format("dtype {}.{}", printable(module), printable(name)));
  return *found;
}

std::int64_t TensorResolver::integer(Node node, std::string_view what) const {
  if (graph_.kind(node) != PickleKind::kInt) corrupt(fmt::format("{} that is no integer", what));
  return graph_.integer(node);
}

/// A tuple, a list, or torch.Size((...)).
std::vector<std::int64_t> TensorResolver::integers(Node node, std::string_view what) const {
  if (graph_.is_call(node, "torch", "Size") && !graph_.state(node) && graph_.items(node).empty() &&
      graph_.dict_items(node).empty()) {
    const auto arguments = graph_.items(graph_.arguments(node));
    if (arguments.empty()) return {};
    node = arguments[0];
  }
  if (graph_.kind(node) != PickleKind::kTuple && graph_.kind(node) != PickleKind::kList)
    corrupt(fmt::format("{} that is no tuple", what));
  std::vector<std::int64_t> out;
  for (const Node item : graph_.items(node)) out.push_back(integer(item, what));
  return out;
}

bool TensorResolver::flag(Node node) const {
  if (graph_.kind(node) == PickleKind::kInt) return graph_.integer(node) != 0;
  if (graph_.kind(node) != PickleKind::kBool) corrupt("a flag that is no bool");
  return graph_.boolean(node);
}

std::string_view TensorResolver::string(Node node, std::string_view what) const {
  const PickleKind kind = graph_.kind(node);
  if (kind != PickleKind::kString && kind != PickleKind::kBytes)
    corrupt(fmt::format("{} that is no string", what));
  return graph_.text(node);
}

}  // namespace tessera

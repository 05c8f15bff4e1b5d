// What a torch pickle may not do to its tensors: change them outside of the calls that make them.
#include <fmt/format.h>
#include <tessera/base/error.h>

#include <algorithm>
#include <iterator>

#include "lib/encoding/torch_tensors.h"

namespace tessera {
/// The classes that torch.Tensor() and torch.sparse.FloatTensor(indices, values, size) call.
bool TensorResolver::is_tensor_class(std::string_view module, std::string_view name) {
  return name.ends_with("Tensor") && (module == "torch" || module == "torch.sparse" ||
                                      module == "torch.cuda" || module == "torch.cuda.sparse");
}

void TensorResolver::check_calls() {
  for (Node node = 0; node < graph_.node_count(); ++node) {
    const PickleKind kind = graph_.kind(node);
    if (kind == PickleKind::kPersistentId) check_storage(node);
    if (is_call(kind) && graph_.kind(graph_.callable(node)) == PickleKind::kGlobal)
      check_call(node);
  }
}

/// BUILD puts another storage in, or sets attributes that are the tensor's data; no torch.save
/// writes it after a function that makes the whole tensor.
void TensorResolver::check_call(Node node) const {
  const auto [module, name] = graph_.global(graph_.callable(node));
  const bool rebuilds =
      (module == "torch._utils" || module == "torch._tensor") && name.starts_with("_rebuild");
  const bool is_class = is_tensor_class(module, name) || module == "torch.nn.parameter";
  if (!rebuilds && !is_class) return;
  const bool grown = !graph_.items(node).empty() || !graph_.dict_items(node).empty();
  if (grown || (rebuilds && graph_.state(node)))
    corrupt(fmt::format("{}.{}: items or a state set on a tensor that is complete", module, name));
  const auto arguments = graph_.items(graph_.arguments(node));
  if (rebuilds && arguments.size() > 3 &&
      (name == "_rebuild_parameter_with_state" || module == "torch._tensor"))
    check_attributes(arguments[3]);
}

/// `state`: a tensor's __dict__, or a tuple of that and of its slots. Of what can be set on a
/// tensor, these are no attributes of Python's but what it holds.
void TensorResolver::check_attributes(Node state) const {
  static constexpr std::string_view kContent[] = {"data", "real", "imag", "requires_grad",
                                                  "__class__"};
  const auto check = [&](Node part) {
    if (is_call(graph_.kind(part)) && !graph_.items(graph_.arguments(part)).empty())
      fail(Code::kUnsupported, "a tensor's attributes in what is no plain dict");
    const auto items = graph_.dict_items(part);
    for (std::size_t i = 0; i + 1 < items.size(); i += 2)
      if (graph_.kind(items[i]) == PickleKind::kString &&
          std::ranges::find(kContent, graph_.text(items[i])) != std::end(kContent))
        corrupt(fmt::format("a tensor's state sets its attribute \"{}\", which is its content",
                            graph_.text(items[i])));
  };
  if (graph_.kind(state) != PickleKind::kTuple) return check(state);
  for (const Node part : graph_.items(state)) check(part);
}

}  // namespace tessera

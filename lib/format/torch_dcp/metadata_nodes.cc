#include "lib/format/torch_dcp/metadata_nodes.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/tensor/shape.h>

namespace tessera::dcp {
namespace {

void spend(std::size_t& left, std::size_t n) {
  if (n > left) fail(Code::kCorrupt, "it expands to far more than its bytes can describe");
  left -= n;
}

}  // namespace

std::optional<std::pair<std::string_view, std::string_view>> MetadataNodes::class_of(
    Node node) const {
  const auto kind = graph_.kind(node);
  if (kind != PickleKind::kNewObj && kind != PickleKind::kReduce) return std::nullopt;
  const Node callable = graph_.callable(node);
  if (graph_.kind(callable) != PickleKind::kGlobal) return std::nullopt;
  return graph_.global(callable);
}

std::string MetadataNodes::describe(Node node) const {
  if (const auto cls = class_of(node)) {
    return printable(fmt::format("a {}.{}", cls->first, cls->second));
  }
  return "no object of a class";
}

std::optional<PickleGraph::Node> MetadataNodes::optional_field(Node object,
                                                               std::string_view name) const {
  const auto state = graph_.state(object);
  if (!state || graph_.kind(*state) != PickleKind::kDict) return std::nullopt;
  return graph_.find(*state, name);
}

PickleGraph::Node MetadataNodes::field(Node object, std::string_view name) const {
  const auto node = optional_field(object, name);
  if (!node) {
    fail(Code::kCorrupt, fmt::format("{} has no attribute \"{}\"", describe(object), name));
  }
  return *node;
}

void MetadataNodes::require_class(Node node, std::string_view name) const {
  const auto cls = class_of(node);
  if (!cls || cls->second != name) {
    fail(Code::kCorrupt, fmt::format("expected a {}, found {}", name, describe(node)));
  }
}

void MetadataNodes::require_dict(Node node, std::string_view what) const {
  if (graph_.kind(node) != PickleKind::kDict) {
    fail(Code::kCorrupt, fmt::format("{} is no dict", what));
  }
}

std::string_view MetadataNodes::string(Node node, std::string_view what) const {
  if (graph_.kind(node) != PickleKind::kString) {
    fail(Code::kCorrupt, fmt::format("{} is no string", what));
  }
  return graph_.text(node);
}

std::int64_t MetadataNodes::non_negative(Node node, std::string_view what) const {
  if (graph_.kind(node) != PickleKind::kInt) {
    fail(Code::kCorrupt, fmt::format("{} is no 64-bit integer", what));
  }
  const std::int64_t value = graph_.integer(node);
  if (value < 0) fail(Code::kCorrupt, fmt::format("{} is negative ({})", what, value));
  return value;
}

std::string MetadataNodes::copy(std::string_view text) {
  spend(text_left_, text.size() + sizeof(std::string));
  return std::string(text);
}

std::size_t MetadataNodes::append_size(Node node, std::string_view what,
                                       std::vector<std::int64_t>& pool) {
  if (graph_.kind(node) == PickleKind::kReduce) {
    require_class(node, "Size");
    const auto arguments = graph_.items(graph_.arguments(node));
    if (arguments.size() != 1) fail(Code::kCorrupt, fmt::format("{} is no torch.Size", what));
    node = arguments[0];
  }
  if (graph_.kind(node) != PickleKind::kTuple && graph_.kind(node) != PickleKind::kList) {
    fail(Code::kCorrupt, fmt::format("{} is no torch.Size", what));
  }
  const auto items = graph_.items(node);
  if (items.size() > static_cast<std::size_t>(kMaxRank)) {
    fail(Code::kCorrupt,
         fmt::format("{} has {} dimensions, the limit is {}", what, items.size(), kMaxRank));
  }
  spend(numbers_left_, items.size());
  for (const Node item : items) pool.push_back(non_negative(item, what));
  return items.size();
}

std::string MetadataNodes::path_text(Node node) const {
  if (graph_.kind(node) == PickleKind::kString) return std::string(graph_.text(node));
  if (!class_of(node) || graph_.kind(graph_.arguments(node)) != PickleKind::kTuple) return {};
  std::string text;
  for (const Node part : graph_.items(graph_.arguments(node))) {
    if (graph_.kind(part) != PickleKind::kString) return {};
    if (!text.empty() && !text.ends_with('/')) text += '/';
    text += graph_.text(part);
  }
  return text;
}

}  // namespace tessera::dcp

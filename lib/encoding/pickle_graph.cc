#include "lib/encoding/pickle_graph.h"

#include <tessera/base/error.h>

#include <bit>

namespace tessera {
namespace {

bool is_call_kind(PickleKind kind) {
  return kind == PickleKind::kReduce || kind == PickleKind::kNewObj;
}

bool is_sequence(PickleKind kind) {
  return kind == PickleKind::kList || kind == PickleKind::kTuple || kind == PickleKind::kSet ||
         kind == PickleKind::kFrozenSet;
}

}  // namespace

const PickleNode& PickleGraph::Rep::at(Node node, PickleKind kind) const {
  TESSERA_CHECK(node < nodes.size() && nodes[node].kind == kind);
  return nodes[node];
}

const PickleExtra* PickleGraph::Rep::extra(Node node) const {
  if (!(nodes[node].flags & PickleNode::kHasExtra)) return nullptr;
  return &extras.at(node);
}

PickleGraph::Node PickleGraph::root() const { return rep_->root; }

std::size_t PickleGraph::node_count() const { return rep_->nodes.size(); }

PickleKind PickleGraph::kind(Node node) const {
  TESSERA_CHECK(node < rep_->nodes.size());
  return rep_->nodes[node].kind;
}

bool PickleGraph::boolean(Node node) const { return rep_->at(node, PickleKind::kBool).b != 0; }

std::int64_t PickleGraph::integer(Node node) const {
  return static_cast<std::int64_t>(rep_->at(node, PickleKind::kInt).wide());
}

double PickleGraph::real(Node node) const {
  return std::bit_cast<double>(rep_->at(node, PickleKind::kFloat).wide());
}

std::string_view PickleGraph::text(Node node) const {
  const PickleKind k = kind(node);
  TESSERA_CHECK(k == PickleKind::kString || k == PickleKind::kBytes ||
                k == PickleKind::kByteArray || k == PickleKind::kBigInt);
  const PickleNode& n = rep_->nodes[node];
  return std::string_view(rep_->text).substr(n.wide(), n.length());
}

std::span<const PickleGraph::Node> PickleGraph::items(Node node) const {
  const PickleKind k = kind(node);
  const PickleNode& n = rep_->nodes[node];
  if (is_sequence(k)) return rep_->run({n.wide(), n.a, false});
  const PickleExtra* extra = is_call_kind(k) ? rep_->extra(node) : nullptr;
  return extra ? rep_->run(extra->items) : std::span<const Node>{};
}

std::span<const PickleGraph::Node> PickleGraph::dict_items(Node node) const {
  const PickleKind k = kind(node);
  const PickleNode& n = rep_->nodes[node];
  if (k == PickleKind::kDict) return rep_->run({n.wide(), n.a, false});
  const PickleExtra* extra = is_call_kind(k) ? rep_->extra(node) : nullptr;
  return extra ? rep_->run(extra->dict_items) : std::span<const Node>{};
}

std::pair<std::string_view, std::string_view> PickleGraph::global(Node node) const {
  const PickleGlobal& g = rep_->globals[rep_->at(node, PickleKind::kGlobal).a];
  return {g.module, g.name};
}

PickleGraph::Node PickleGraph::callable(Node node) const {
  TESSERA_CHECK(is_call_kind(kind(node)));
  return rep_->nodes[node].a;
}

PickleGraph::Node PickleGraph::arguments(Node node) const {
  const PickleKind k = kind(node);
  TESSERA_CHECK(is_call_kind(k) || k == PickleKind::kPersistentId);
  return k == PickleKind::kPersistentId ? rep_->nodes[node].a : rep_->nodes[node].b;
}

std::optional<PickleGraph::Node> PickleGraph::keyword_arguments(Node node) const {
  const PickleExtra* extra = is_call_kind(kind(node)) ? rep_->extra(node) : nullptr;
  if (!extra || !extra->has_keyword_arguments) return std::nullopt;
  return extra->keyword_arguments;
}

std::optional<PickleGraph::Node> PickleGraph::state(Node node) const {
  if (!is_call_kind(kind(node))) return std::nullopt;
  const PickleNode& n = rep_->nodes[node];
  if (!(n.flags & PickleNode::kHasState)) return std::nullopt;
  return n.c;
}

bool PickleGraph::is_global(Node node, std::string_view module, std::string_view name) const {
  if (kind(node) != PickleKind::kGlobal) return false;
  const PickleGlobal& g = rep_->globals[rep_->nodes[node].a];
  return g.name == name && g.module == module;
}

bool PickleGraph::is_call(Node node, std::string_view module, std::string_view name) const {
  return is_call_kind(kind(node)) && is_global(rep_->nodes[node].a, module, name);
}

std::optional<PickleGraph::Node> PickleGraph::find(Node dict, std::string_view key) const {
  const auto entries = dict_items(dict);
  for (std::size_t i = entries.size(); i >= 2; i -= 2) {
    const Node k = entries[i - 2];
    if (kind(k) == PickleKind::kString && text(k) == key) return entries[i - 1];
  }
  return std::nullopt;
}

}  // namespace tessera

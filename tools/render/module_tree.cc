#include "tools/render/module_tree.h"

#include <fmt/format.h>
#include <tessera/base/text.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <utility>

namespace tessera::tools {
namespace {

/// Fewer stand as lines of their own.
constexpr std::size_t kLeastAlike = 3;

std::int64_t number_of(std::string_view text) {
  std::int64_t value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? value : -1;
}

std::string range_text(std::string_view first, std::string_view last, std::uint32_t count) {
  const std::int64_t from = number_of(first), to = number_of(last);
  return to - from == static_cast<std::int64_t>(count) - 1
             ? fmt::format("[{}-{}]", from, to)
             : fmt::format("[{} of {}-{}]", count, from, to);
}

}  // namespace

std::uint32_t ModuleTree::child(std::uint32_t parent, std::string_view part) {
  // Names come in order: the module of the one before is the usual one.
  if (!nodes_[parent].children.empty() && nodes_[nodes_[parent].children.back()].name == part)
    return nodes_[parent].children.back();
  const auto [found, is_new] = places_.try_emplace({parent, part}, size());
  if (!is_new) return found->second;
  nodes_[parent].children.push_back(size());
  nodes_.emplace_back();
  nodes_.back().name = part;
  nodes_.back().parent = parent;
  return found->second;
}

std::uint32_t ModuleTree::form_of(const std::string& text) {
  const auto [found, is_new] =
      form_ids_.try_emplace(text, static_cast<std::uint32_t>(form_ids_.size()));
  return found->second;
}

void ModuleTree::add(SharedText name, const std::string& form, std::uint64_t bytes) {
  const auto item = static_cast<std::uint32_t>(names_.size());
  names_.push_back(std::move(name));
  std::uint32_t at = kRoot;
  for (const std::string_view part : split(names_.back().view(), '.')) at = child(at, part);
  nodes_[at].item = item;
  nodes_[at].bytes += bytes;
  nodes_[at].tensors = 1;
  nodes_[at].form = form_of(form);
  if (forms_.size() < form_ids_.size()) forms_.push_back(form);
}

/// Children that are numbers and alike go below a node of their own.
void ModuleTree::fold(std::uint32_t node) {
  std::map<std::uint32_t, std::vector<std::uint32_t>> alike;  // form -> children with numbers
  for (const std::uint32_t c : nodes_[node].children)
    if (number_of(nodes_[c].name) >= 0) alike[nodes_[c].form].push_back(c);
  std::erase_if(alike, [](const auto& group) { return group.second.size() < kLeastAlike; });
  for (auto& [form, members] : alike) {
    std::ranges::stable_sort(members, {}, [&](auto m) { return number_of(nodes_[m].name); });
    Node fold;
    fold.parent = node;
    fold.alike = static_cast<std::uint32_t>(members.size());
    const std::uint32_t at = size();
    for (const std::uint32_t m : members) {
      fold.bytes += nodes_[m].bytes;
      fold.tensors += nodes_[m].tensors;
      nodes_[m].parent = at;
    }
    std::erase_if(nodes_[node].children, [&](auto c) { return nodes_[c].parent == at; });
    nodes_[node].children.push_back(at);
    fold.form = form;
    fold_labels_[at] =
        range_text(nodes_[members.front()].name, nodes_[members.back()].name, fold.alike);
    fold.children = std::move(members);
    nodes_.push_back(std::move(fold));
  }
}

void ModuleTree::sum(std::uint32_t node) {
  std::vector<std::pair<std::string, std::uint32_t>> labelled;
  for (const std::uint32_t c : nodes_[node].children) labelled.emplace_back(label(c), c);
  std::ranges::stable_sort(labelled, natural_less, [](const auto& each) { return each.first; });
  Node& n = nodes_[node];
  std::string form = n.item == kNone ? "" : fmt::format("{}:", n.form);
  for (std::size_t i = 0; i < labelled.size(); ++i) {
    const auto& [label, c] = labelled[i];
    n.children[i] = c;
    n.bytes += nodes_[c].bytes;
    n.tensors += nodes_[c].tensors;
    form += fmt::format("{}({})", label, nodes_[c].form);
  }
  if (n.item == kNone) n.form = form_of(form);
}

void ModuleTree::number_children(std::uint32_t node) {
  const std::vector<std::uint32_t>& children = nodes_[node].children;
  for (std::uint32_t i = 0; i < children.size(); ++i) nodes_[children[i]].place = i;
}

void ModuleTree::order(const std::function<bool(std::uint32_t a, std::uint32_t b)>& less) {
  for (std::uint32_t node = 0; node < size(); ++node) {
    std::ranges::stable_sort(nodes_[node].children, less);
    number_children(node);
  }
}

std::uint32_t ModuleTree::next(std::uint32_t node, std::uint32_t root) const {
  if (!nodes_[node].children.empty()) return nodes_[node].children.front();
  for (; node != root; node = nodes_[node].parent) {
    const std::vector<std::uint32_t>& siblings = nodes_[nodes_[node].parent].children;
    if (nodes_[node].place + 1 < siblings.size()) return siblings[nodes_[node].place + 1];
  }
  return kNone;
}

std::uint32_t ModuleTree::previous(std::uint32_t node, std::uint32_t root) const {
  if (node == root) return kNone;
  if (nodes_[node].place == 0) return nodes_[node].parent == root ? kNone : nodes_[node].parent;
  node = nodes_[nodes_[node].parent].children[nodes_[node].place - 1];
  while (!nodes_[node].children.empty()) node = nodes_[node].children.back();
  return node;
}

void ModuleTree::finish() {
  // Children have larger numbers than their parents.
  for (std::uint32_t node = size(); node-- > 0;) {
    if (nodes_[node].children.empty()) continue;
    fold(node);
    sum(node);
  }
  for (std::uint32_t node = 0; node < size(); ++node) number_children(node);
  form_ids_ = {};
  places_ = {};
}

std::string ModuleTree::label(std::uint32_t node) const {
  return nodes_[node].alike > 0 ? fold_labels_.at(node) : std::string(nodes_[node].name);
}

std::string ModuleTree::full_name(std::uint32_t node) const {
  if (nodes_[node].item != kNone) return std::string(names_[nodes_[node].item].view());
  std::vector<std::uint32_t> path;
  for (std::uint32_t at = node; at != kRoot; at = nodes_[at].parent)
    if (at == node || nodes_[at].alike == 0) path.push_back(at);
  std::string name;
  for (std::size_t i = path.size(); i-- > 0;) name += (name.empty() ? "" : ".") + label(path[i]);
  return name;
}

ModuleTree::Joined ModuleTree::joined(std::uint32_t node, bool through_folds) const {
  Joined out{label(node), node};
  for (;;) {
    const Node& n = nodes_[out.node];
    if (n.alike > 0 && through_folds) {
      out.node = n.children.front();
      continue;
    }
    if (n.alike > 0 || n.item != kNone || n.children.size() != 1) return out;
    if (nodes_[n.children.front()].alike > 0) return out;
    out.node = n.children.front();
    out.label += "." + label(out.node);
  }
}

}  // namespace tessera::tools

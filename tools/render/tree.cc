// ls --tree: modules with their sizes; siblings with numbers that hold the same are one line.
#include <fmt/format.h>
#include <tessera/base/text.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tools/render/number_text.h"
#include "tools/render/render.h"

namespace tessera::tools {
namespace {

struct Node {
  std::string name;
  std::string form;  // of a tensor: type and shape; of a module: what it holds, as text
  std::uint64_t bytes = 0;
  std::uint64_t tensors = 0;
  std::uint64_t alike = 1;  // modules that this line stands for
  bool is_tensor = false;
  std::map<std::string, std::size_t> places;  // of children, by name
  std::vector<std::unique_ptr<Node>> children;

  Node& child(const std::string& part) {
    const auto [found, is_new] = places.emplace(part, children.size());
    if (is_new) {
      children.push_back(std::make_unique<Node>());
      children.back()->name = part;
    }
    return *children[found->second];
  }
};

std::int64_t number_of(const std::string& text) {
  std::int64_t value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? value : -1;
}

/// "layers [0-95]" of what is alike, in the order of the numbers.
std::string range_text(const std::vector<std::int64_t>& numbers) {
  const bool dense =
      numbers.back() - numbers.front() == static_cast<std::int64_t>(numbers.size()) - 1;
  return dense ? fmt::format("[{}-{}]", numbers.front(), numbers.back())
               : fmt::format("[{} of {}-{}]", numbers.size(), numbers.front(), numbers.back());
}

/// Forms, sums, and siblings that are alike as one. Children first.
void fold(Node& node) {
  for (auto& child : node.children) fold(*child);
  std::map<std::string, std::vector<std::size_t>> alike;  // form -> children with numbers
  for (std::size_t i = 0; i < node.children.size(); ++i)
    if (number_of(node.children[i]->name) >= 0) alike[node.children[i]->form].push_back(i);
  for (auto& [form, members] : alike) {
    if (members.size() < 3) continue;
    std::vector<std::int64_t> numbers;
    for (const std::size_t i : members) numbers.push_back(number_of(node.children[i]->name));
    std::ranges::sort(numbers);
    Node& first = *node.children[members.front()];
    first.name = range_text(numbers);
    first.alike = members.size();
    for (std::size_t m = 1; m < members.size(); ++m) {
      first.bytes += node.children[members[m]]->bytes;
      first.tensors += node.children[members[m]]->tensors;
      node.children[members[m]].reset();
    }
  }
  std::erase_if(node.children, [](const auto& child) { return child == nullptr; });
  std::ranges::stable_sort(
      node.children, [](const auto& a, const auto& b) { return natural_less(a->name, b->name); });
  if (node.is_tensor) return;
  for (const auto& child : node.children) {
    node.bytes += child->bytes;
    node.tensors += child->tensors;
    node.form += child->name + "(" + child->form + ")";
  }
}

/// A module that holds one module or tensor alone is one line with it.
void join_chains(Node& node) {
  while (node.children.size() == 1 && node.children[0]->alike == 1) {
    const std::unique_ptr<Node> only = std::move(node.children[0]);
    node.name += "." + only->name;
    node.children = std::move(only->children);
    node.is_tensor = only->is_tensor;
    if (node.is_tensor) node.form = only->form;
  }
  for (auto& child : node.children) join_chains(*child);
}

void write_lines(const Node& node, const std::string& indent, const Screen& screen,
                 const Sink& sink) {
  for (const auto& child : node.children) {
    const std::string name = printable(child->name);
    std::string facts = format_bytes(child->bytes);
    if (child->is_tensor)
      facts += "  " + child->form;
    else
      facts += "  " + counted(child->tensors, "tensor");
    if (child->alike > 1)
      facts +=
          fmt::format(", {} alike of {}", child->alike, format_bytes(child->bytes / child->alike));
    const int room = std::max(1, screen.width / 2 - display_width(indent));
    sink(indent + screen.paint(child->is_tensor ? Tint::kPlain : Tint::kBold, name) +
         std::string(static_cast<std::size_t>(std::max(1, room - display_width(name))), ' ') +
         screen.paint(Tint::kDim, facts) + "\n");
    write_lines(*child, indent + "  ", screen, sink);
  }
}

}  // namespace

void write_tree(const LsReport& report, const LsSource& source, const Screen& screen,
                const Sink& sink) {
  Node root;
  for (std::size_t i = 0; i < source.count; ++i) {
    const LsTensor tensor = source.tensor(i);
    Node* node = &root;
    const std::string name(tensor.name);
    for (const std::string_view part : split(name, '.')) node = &node->child(std::string(part));
    node->is_tensor = true;
    node->form = fmt::format("{} {}", tensor.dtype, shape_text(tensor.shape));
    node->bytes = tensor.bytes;
    node->tensors = 1;
  }
  fold(root);
  for (auto& child : root.children) join_chains(*child);
  write_lines(root, "", screen, sink);
  sink(screen.paint(Tint::kDim,
                    fmt::format("{}, {}, {}", counted(source.count, "tensor"),
                                counted(static_cast<std::uint64_t>(report.total_numel), "element"),
                                format_bytes(report.total_bytes))) +
       "\n");
}

}  // namespace tessera::tools

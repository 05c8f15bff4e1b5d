// ls --tree: modules with their sizes; siblings with numbers that hold the same are one line.
#include <fmt/format.h>
#include <tessera/base/text.h>

#include <algorithm>
#include <string>

#include "tools/render/module_tree.h"
#include "tools/render/number_text.h"
#include "tools/render/render.h"

namespace tessera::tools {
namespace {

void write_lines(const ModuleTree& tree, std::uint32_t node, const std::string& indent,
                 const Screen& screen, const Sink& sink) {
  for (const std::uint32_t child : tree[node].children) {
    const ModuleTree::Joined line = tree.joined(child, /*through_folds=*/true);
    const std::string name = printable(line.label);
    const bool is_tensor = tree[line.node].item != ModuleTree::kNone;
    const ModuleTree::Node& n = tree[child];
    std::string facts = format_bytes(n.bytes) + "  " +
                        (is_tensor ? tree.form_text(line.node) : counted(n.tensors, "tensor"));
    if (n.alike > 0)
      facts += fmt::format(", {} alike of {}", n.alike, format_bytes(n.bytes / n.alike));
    const std::string label = screen.paint(is_tensor ? Tint::kPlain : Tint::kBold, name);
    const int used = display_width(indent) + display_width(name);
    const int room = screen.width - display_width(facts);
    // In one column where there is room, else as far left as the name lets them, else below it.
    const int middle = screen.width / 2;
    const int column = std::max(used + 2, screen.whole ? middle : std::min(middle, room));
    if (screen.whole || column <= room) {
      sink(indent + label + std::string(static_cast<std::size_t>(column - used), ' ') +
           screen.paint(Tint::kDim, facts) + "\n");
    } else {
      sink(screen.wrap(name, indent) + screen.wrap(facts, indent + "    "));
    }
    write_lines(tree, line.node, indent + "  ", screen, sink);
  }
}

}  // namespace

void write_tree(const LsReport& report, const LsSource& source, const Screen& screen,
                const Sink& sink) {
  ModuleTree tree;
  for (std::size_t i = 0; i < source.count; ++i) {
    const LsTensor tensor = source.tensor(i);
    tree.add(tensor.name, fmt::format("{} {}", tensor.dtype, shape_text(tensor.shape)),
             tensor.bytes);
  }
  tree.finish();
  write_lines(tree, ModuleTree::kRoot, "", screen, sink);
  sink(
      name_and_facts(fmt::format("{}, {}, {}", counted(source.count, "tensor"),
                                 counted(static_cast<std::uint64_t>(report.total_numel), "element"),
                                 format_bytes(report.total_bytes)),
                     "", screen, Tint::kDim));
}

}  // namespace tessera::tools

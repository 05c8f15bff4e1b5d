#include <fmt/format.h>
#include <tessera/base/text.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>

#include "tools/render/number_text.h"
#include "tools/render/render.h"
#include "tools/render/table.h"

namespace tessera::tools {
namespace {

constexpr std::size_t kMostParameters = 40;
constexpr int kShareBarWidth = 16;

std::string step_text(const std::optional<double>& step) {
  return step ? real_text(*step, 10) : "-";
}

std::string group_lines(const OptimizerReport& o, const Screen& screen) {
  std::string text;
  for (std::size_t i = 0; i < std::min<std::size_t>(8, o.groups.size()); ++i) {
    const OptimReportGroup& group = o.groups[i];
    std::vector<std::string> options;
    for (const auto& [name, value] : group.options) {
      if (!value.is_none()) options.push_back(printable(name) + " " + value_text(value));
    }
    text += fact_lines(
        fmt::format("group {}", group.index),
        fmt::format("{}; {}", counted(group.members.size(), "member"), fmt::join(options, ", ")), 3,
        screen);
  }
  if (o.groups.size() > 8) text += fmt::format("  ... and {} more groups\n", o.groups.size() - 8);
  return text;
}

std::string leaf_sets(const OptimizerReport& o, const Screen& screen) {
  Table table({{"state", false, 1}, {"step", true}, {"parameters", true}});
  for (const LeafSetRow& row : o.leaf_sets) {
    table.add({row.leaves.empty() ? "(none)" : printable(row.leaves), step_text(row.step),
               count_text(row.count)});
  }
  return table.empty() ? std::string() : table.render(screen, "  ");
}

/// Whether leaf_sets() says all that a row for each parameter would.
bool all_alike(const OptimizerReport& o) {
  return o.leaf_sets.size() <= 1 &&
         std::ranges::all_of(o.parameters, [](const OptimReportParameter& p) {
           const bool as_weight = std::ranges::all_of(p.leaves, [&](const OptimReportLeaf& leaf) {
             return leaf.matches_weight || !p.has_weight || leaf.name == "step";
           });
           return !p.inferred && as_weight;
         });
}

std::string leaves_text(const OptimReportParameter& p) {
  std::vector<std::string> names;
  for (const OptimReportLeaf& leaf : p.leaves) {
    const bool as_weight = leaf.matches_weight || !p.has_weight || leaf.name == "step";
    names.push_back(printable(leaf.name) + (as_weight ? "" : "*"));
  }
  return names.empty() ? "(none)" : fmt::format("{}", fmt::join(names, ", "));
}

std::string parameter_table(const OptimizerReport& o, const Screen& screen) {
  Table table({{"parameter", false, 1},
               {"group", true},
               {"step", true},
               {"from"},
               {"state", false, 1},
               {"key", false, 1}});
  bool other_shape = false;
  for (std::size_t i = 0; i < std::min(kMostParameters, o.parameters.size()); ++i) {
    const OptimReportParameter& p = o.parameters[i];
    std::string key;
    if (p.inferred)
      key = fmt::format("id {}, {}", printable(p.stored_key),
                        p.certain ? "inferred" : "inferred, ambiguous");
    const std::string leaves = leaves_text(p);
    other_shape = other_shape || leaves.find('*') != std::string::npos;
    table.add({printable(p.fqn), p.group < 0 ? "-" : fmt::format("{}", p.group), step_text(p.step),
               std::string(step_origin_name(p.step_origin)), leaves, key});
  }
  std::string text = table.empty() ? std::string() : table.render(screen, "  ");
  if (o.parameters.size() > kMostParameters) {
    text += fmt::format("  ... and {} more: --format json lists all\n",
                        o.parameters.size() - kMostParameters);
  }
  if (other_shape) text += "  * not of its weight's shape\n";
  return text;
}

/// What the bars of the ranking measure: growth with a second checkpoint, the ratio otherwise.
double ranked_by(const UpdateRow& row) { return row.growth ? *row.growth : row.ratio; }

std::string ranking(const OptimizerReport& o, bool two, std::size_t most, const Screen& screen) {
  if (o.updates.empty()) return {};
  double top = 0;
  for (const UpdateRow& row : o.updates) {
    if (std::isfinite(ranked_by(row))) top = std::max(top, ranked_by(row));
  }
  std::vector<Column> columns{{"parameter", false, 1},   {"", false, 0, true},
                              {"update / weight", true}, {"|update|", true},
                              {"|weight|", true},        {"max v", true}};
  if (two) columns.insert(columns.begin() + 2, {"growth of v", true});
  const auto number = [](double value) {
    return std::isnan(value) ? Cell("NaN", Tint::kRed) : Cell(real_text(value));
  };
  Table table(std::move(columns));
  for (std::size_t i = 0; i < std::min(most, o.updates.size()); ++i) {
    const UpdateRow& row = o.updates[i];
    const double part = top > 0 && std::isfinite(ranked_by(row)) ? ranked_by(row) / top : 0;
    std::vector<Cell> cells{printable(row.fqn),
                            Cell(pad_right(bar(part, kShareBarWidth), kShareBarWidth), Tint::kCyan),
                            number(row.ratio),
                            number(row.update_norm),
                            number(row.weight_norm),
                            number(row.v_max)};
    if (two)
      cells.insert(cells.begin() + 2,
                   Cell(row.growth ? fmt::format("x {}", real_text(*row.growth)) : "-"));
    table.add(std::move(cells));
  }
  std::string text =
      two ? name_and_facts("growth of v from A to B", "the other columns are A's", screen)
          : screen.paint(Tint::kBold, "size of the next update") + "\n";
  text += table.render(screen, "  ");
  if (o.updates.size() > most)
    text += fmt::format("  ... and {} more: --top shows more\n", o.updates.size() - most);
  return text;
}

std::string optimizer_text(const OptimizerReport& o, bool two, std::size_t most,
                           const Screen& screen) {
  std::string text = name_and_facts(
      fmt::format("{} at \"{}\"", printable(o.kind), printable(o.root)),
      fmt::format("{}, {}", printable(o.dialect), counted(o.parameters.size(), "parameter")),
      screen);
  text += ranking(o, two, most, screen);
  if (!o.update_note.empty()) text += screen.wrap(printable(o.update_note), "  ");
  text += screen.paint(Tint::kBold, "state") + "\n" + group_lines(o, screen);
  return text + leaf_sets(o, screen) + (all_alike(o) ? "" : parameter_table(o, screen));
}

}  // namespace

std::string render_optim(const OptimReport& r, std::size_t most, const Screen& screen) {
  std::string text = r.findings.empty() && r.optimizers.empty() ? std::string()
                     : r.findings.empty()
                         ? screen.paint(Tint::kGreen, "no findings") + "\n"
                         : screen.paint(Tint::kBold, counted(r.findings.size(), "finding")) + "\n";
  text += render_notes(grouped_notes(r.findings, "parameter"), 50, screen);
  if (!r.other_path.empty())
    text += screen.wrap(
        fmt::format("of {}; of {} only the second moments were read: ckpt-inspect "
                    "optim {} looks for findings there",
                    printable(r.path), printable(r.other_path), printable(r.other_path)),
        "  ");
  for (const OptimizerReport& optimizer : r.optimizers) {
    text += optimizer_text(optimizer, !r.other_path.empty(), most, screen);
  }
  std::vector<Note> notes = r.notes;
  if (r.optimizers.empty() && r.held_in.empty()) {
    text += "no optimizer state in " + screen.clip(printable(r.path), screen.width - 22) + "\n";
    // Which says the same again.
    std::erase_if(notes, [](const Note& note) { return note.code == Finding::kNoOptimizer; });
  }
  return text + render_notes(notes, 5, screen);
}

}  // namespace tessera::tools

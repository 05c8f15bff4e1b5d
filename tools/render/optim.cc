#include <fmt/format.h>
#include <tessera/base/text.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "tools/render/number_text.h"
#include "tools/render/render.h"
#include "tools/render/table.h"

namespace tessera::tools {
namespace {

constexpr std::size_t kMostUpdates = 20;
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
    text += fact_line(
        fmt::format("group {}", group.index),
        fmt::format("{}; {}", counted(group.members.size(), "member"), fmt::join(options, ", ")),
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

std::string without_numbers(std::string_view text) {
  std::string out;
  for (const char c : text)
    if (c < '0' || c > '9') out += c;
  return out;
}

/// What the bars of the ranking measure: growth with a second checkpoint, the ratio otherwise.
double ranked_by(const UpdateRow& row) { return row.growth ? *row.growth : row.ratio; }

std::string ranking(const OptimizerReport& o, bool two, const Screen& screen) {
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
  for (std::size_t i = 0; i < std::min(kMostUpdates, o.updates.size()); ++i) {
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
      screen.paint(Tint::kBold, two ? "growth of v from A to B" : "size of the next update") +
      "\n" + table.render(screen, "  ");
  if (o.updates.size() > kMostUpdates)
    text += fmt::format("  ... and {} more\n", o.updates.size() - kMostUpdates);
  return text;
}

/// "exp_avg holds NaN or Inf in 3 elements, ..." of many parameters is one line.
std::vector<Note> grouped(const std::vector<Note>& findings) {
  constexpr std::size_t kApart = 3;
  std::map<std::pair<Finding, std::string>, std::vector<std::size_t>> groups;
  for (std::size_t i = 0; i < findings.size(); ++i)
    if (!findings[i].tensor.empty())
      groups[{findings[i].code, without_numbers(findings[i].message)}].push_back(i);
  std::vector<bool> shown(findings.size(), false);
  std::vector<Note> lines;
  for (std::size_t i = 0; i < findings.size(); ++i) {
    if (shown[i]) continue;
    Note line = findings[i];
    const auto group = groups.find({line.code, without_numbers(line.message)});
    if (!line.tensor.empty() && group->second.size() > kApart) {
      for (const std::size_t member : group->second) shown[member] = true;
      line.message = fmt::format("{} parameters, \"{}\" and others: {}", group->second.size(),
                                 line.tensor, line.message);
      line.tensor.clear();
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

std::string optimizer_text(const OptimizerReport& o, bool two, const Screen& screen) {
  std::string text =
      screen.paint(Tint::kBold, fmt::format("{} at \"{}\"", printable(o.kind), printable(o.root))) +
      fmt::format("  {}, {}\n", printable(o.dialect), counted(o.parameters.size(), "parameter"));
  text += group_lines(o, screen) + leaf_sets(o, screen);
  text += parameter_table(o, screen) + ranking(o, two, screen);
  if (!o.update_note.empty()) text += screen.wrap(printable(o.update_note), "  ");
  return text;
}

}  // namespace

std::string render_optim(const OptimReport& r, const Screen& screen) {
  std::string text = r.findings.empty()
                         ? screen.paint(Tint::kGreen, "no findings") + "\n"
                         : screen.paint(Tint::kBold, counted(r.findings.size(), "finding")) + "\n";
  text += render_notes(grouped(r.findings), 50, screen);
  for (const OptimizerReport& optimizer : r.optimizers) {
    text += optimizer_text(optimizer, !r.other_path.empty(), screen);
  }
  if (r.optimizers.empty())
    text += "no optimizer state in " + screen.clip(printable(r.path), screen.width - 22) + "\n";
  return text + render_notes(r.notes, 5, screen);
}

}  // namespace tessera::tools

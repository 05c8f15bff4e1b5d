#include <fmt/format.h>
#include <tessera/base/text.h>

#include <algorithm>
#include <cmath>

#include "tools/render/number_text.h"
#include "tools/render/render.h"
#include "tools/render/table.h"

namespace tessera::tools {
namespace {

constexpr std::size_t kMostLines = 40;
/// What the other columns of the byte table leave of the line.
int bytes_bar_width(const Screen& screen) { return std::clamp(screen.width - 52, 4, 28); }

std::string joined(const std::vector<std::string>& parts, std::string_view separator) {
  return fmt::format("{}", fmt::join(parts, separator));
}

std::string plain_number(double value) {
  return value == std::floor(value) && std::abs(value) < 1e15
             ? fmt::format("{}", static_cast<std::int64_t>(value))
             : real_text(value, 6);
}

std::string number_facts(const SummaryReport& r, const Screen& screen) {
  std::string text;
  if (r.world_size) {
    text += fact_lines(
        "ranks", fmt::format("{} ({})", *r.world_size, printable(r.world_size_source)), 2, screen);
  }
  std::size_t left = 4;
  for (const SourcedNumber& number : r.numbers) {
    if (number.name == "world size" || left-- == 0) continue;
    text += fact_line(printable(number.name),
                      fmt::format("{} ({})", plain_number(number.value), printable(number.source)),
                      screen);
  }
  return text;
}

std::string parameter_fact(const SummaryReport& r) {
  std::string text = fmt::format("{}, {}", counted(r.parameters, "tensor"),
                                 counted(static_cast<std::uint64_t>(r.parameter_numel), "element"));
  if (r.trainable || r.frozen)
    text += fmt::format(" ({} trainable, {} frozen)", r.trainable, r.frozen);
  if (r.buffers) text += ", " + counted(r.buffers, "buffer");
  return text;
}

std::string complete_text(const SummaryReport& r) {
  if (!r.complete) return "NO";
  const bool denied =
      std::ranges::count(r.globals, GlobalUse::Verdict::kDenied, &GlobalUse::verdict) > 0;
  if (denied) return "yes, and UNSAFE: loading it elsewhere would run code";
  if (r.lost.empty()) return "yes, by metadata and sizes";
  return fmt::format("as it was salvaged: {} of its source's entries lost", r.lost.size());
}

/// What was lost before this was written, and what lies beside it.
std::string around(const SummaryReport& r, const Screen& screen) {
  constexpr std::size_t kMost = 3;
  std::string text;
  for (std::size_t i = 0; i < std::min(kMost, r.lost.size()); ++i)
    text += fact_line(i ? "" : "lost", printable(r.lost[i].name + ": " + r.lost[i].reason), screen);
  if (r.lost.size() > kMost)
    text += fact_line("", fmt::format("... and {} more", r.lost.size() - kMost), screen);
  std::vector<std::string> files;
  for (const Beside& beside : r.beside) files.push_back(beside_line(beside));
  if (!files.empty()) text += fact_lines("beside", joined(files, ", "), 3, screen);
  return text;
}

std::string head(const SummaryReport& r, const Screen& screen) {
  std::string text =
      screen.paint(Tint::kBold, screen.clip(printable(r.display), screen.width)) + "\n";
  text += fact_lines("format", printable(r.format + (r.dialect.empty() ? "" : ": " + r.dialect)), 3,
                     screen);
  text += fact_lines("detected", printable(r.detected_by), 2, screen);
  text += fact_line("complete", complete_text(r), screen);
  for (std::size_t i = 0; i < std::min<std::size_t>(3, r.problems.size()); ++i) {
    text += fact_lines(i ? "" : "damage", printable(r.problems[i]), 3, screen);
  }
  if (r.problems.size() > 3)
    text += fact_line("", fmt::format("... and {} more", r.problems.size() - 3), screen);
  text += around(r, screen);
  text += fact_line("files", fmt::format("{}, {}", count_text(r.files), format_bytes(r.file_bytes)),
                    screen);
  text += number_facts(r, screen);
  std::string tensors = fmt::format("{} in {}, {}", count_text(r.tensors),
                                    counted(r.chunks, "chunk"), format_bytes(r.tensor_bytes));
  if (r.padded_tensors) tensors += fmt::format(", {} padded", r.padded_tensors);
  text += fact_lines("tensors", tensors + "; " + counted(r.values, "other value"), 2, screen);
  if (r.parameters) text += fact_lines("parameters", parameter_fact(r), 3, screen);
  return text;
}

/// "key  ████  33.3 %  1.2 MiB  12", at most `limit` rows; the rest in one.
std::string byte_table(std::string_view title, const std::vector<ByteRow>& all, std::size_t limit,
                       const Screen& screen) {
  if (all.empty()) return {};
  std::vector<ByteRow> rows(all.begin(),
                            all.begin() + static_cast<std::ptrdiff_t>(std::min(limit, all.size())));
  if (all.size() > limit) {
    rows.back() = {fmt::format("{} others", all.size() - limit + 1), 0, 0, 0};
    for (std::size_t i = limit - 1; i < all.size(); ++i) {
      rows.back().tensors += all[i].tensors;
      rows.back().bytes += all[i].bytes;
    }
  }
  double total = 0;
  double largest = 0;
  for (const ByteRow& row : rows) {
    total += static_cast<double>(row.bytes);
    largest = std::max(largest, static_cast<double>(row.bytes));
  }
  const int bar_width = bytes_bar_width(screen);
  Table table({{"", false, 1}, {}, {"", true}, {"", true}, {"", true}});
  for (const ByteRow& row : rows) {
    const auto bytes = static_cast<double>(row.bytes);
    table.add(
        {printable(row.key),
         Cell(pad_right(bar(largest > 0 ? bytes / largest : 0, bar_width), bar_width), Tint::kCyan),
         percent_text(total > 0 ? bytes / total : 0), format_bytes(row.bytes),
         counted(row.tensors, "tensor")});
  }
  return screen.paint(Tint::kBold, title) + "\n" + table.render(screen, "  ");
}

std::string root_table(const SummaryReport& r, std::size_t limit, const Screen& screen) {
  if (r.roots.size() < 2) return {};
  Table table({{"", false, 1}, {}, {"", true}, {"", true, 0, true}, {"", true}});
  for (std::size_t i = 0; i < std::min(limit, r.roots.size()); ++i) {
    const RootRow& row = r.roots[i];
    table.add({row.name.empty() ? "(top level)" : printable(row.name), row.role,
               counted(row.tensors, "tensor"), counted(row.values, "value"),
               format_bytes(row.bytes)});
  }
  std::string text = screen.paint(Tint::kBold, "state") + "\n" + table.render(screen, "  ");
  if (r.roots.size() > limit) text += fmt::format("  ... and {} more\n", r.roots.size() - limit);
  return text;
}

std::string optimizer_lines(const OptimizerSummary& o, const Screen& screen) {
  std::string line =
      fmt::format("{} at \"{}\" ({}), {}; {} with {}", o.kind, o.root, o.kind_source, o.dialect,
                  counted(o.parameters_with_state, "parameter"), joined(o.leaves, ", "));
  std::string text = fact_lines("optimizer", printable(line), 2, screen);
  std::vector<std::string> groups;
  for (const GroupSummary& group : o.groups) {
    std::string part = counted(group.members, "member");
    if (group.lr) part += ", lr " + real_text(*group.lr);
    if (group.lr_is_tensor) part += ", lr a tensor";
    if (group.weight_decay) part += ", decay " + real_text(*group.weight_decay);
    groups.push_back(part);
    if (groups.size() == 3 && o.groups.size() > 3) {
      groups.push_back(fmt::format("... {} groups", o.groups.size()));
      break;
    }
  }
  if (!groups.empty()) text += fact_line("groups", joined(groups, "; "), screen);
  return text;
}

std::string more_facts(const SummaryReport& r, const Screen& screen) {
  std::string text;
  for (std::size_t i = 0; i < std::min<std::size_t>(2, r.optimizers.size()); ++i) {
    text += optimizer_lines(r.optimizers[i], screen);
  }
  if (!r.tied.empty()) {
    std::vector<std::string> sets;
    for (const auto& names : r.tied) sets.push_back(joined(names, " = "));
    text += fact_line("tied", printable(joined(sets, "; ")), screen);
  }
  if (!r.aliases.empty())
    text += fact_line("tied", printable(aliases_text(r.aliases)) + ", stored once", screen);
  if (!r.provenance.empty()) {
    std::vector<std::string> parts;
    for (const auto& [key, value] : r.provenance) parts.push_back(key + " " + value);
    text += fact_lines("written by", printable(joined(parts, ", ")), 3, screen);
  }
  return text;
}

std::string globals_fact(const SummaryReport& r, const Screen& screen) {
  std::vector<std::string> denied, opaque;
  for (const GlobalUse& use : r.globals) {
    if (use.verdict == GlobalUse::Verdict::kDenied) denied.push_back(use.name);
    if (use.verdict == GlobalUse::Verdict::kOpaque) opaque.push_back(use.name);
  }
  std::string text;
  if (!denied.empty()) text += fact_line("DENIED", printable(joined(denied, ", ")), screen);
  if (!opaque.empty()) text += fact_line("opaque", printable(joined(opaque, ", ")), screen);
  return text;
}

std::string globals_table(const SummaryReport& r, const Screen& screen) {
  if (r.globals.empty())
    return "the checkpoint itself has no pickle globals; every file of it and beside it:\n";
  Table table({{"verdict"}, {"global", false, 1}, {"file", false, 1}});
  for (const GlobalUse& use : r.globals) {
    const Tint tint = use.verdict == GlobalUse::Verdict::kDenied   ? Tint::kRed
                      : use.verdict == GlobalUse::Verdict::kOpaque ? Tint::kYellow
                                                                   : Tint::kGreen;
    table.add({Cell(std::string(verdict_name(use.verdict)), tint), printable(use.name),
               printable(use.file)});
  }
  return table.render(screen);
}

std::size_t line_count(const std::string& text) {
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}

std::string first_lines(const std::string& text, std::size_t limit) {
  if (line_count(text) <= limit) return text;
  std::size_t at = 0;
  for (std::size_t i = 0; i + 1 < limit; ++i) at = text.find('\n', at) + 1;
  return text.substr(0, at) + "  ... more: --format json shows all\n";
}

}  // namespace

std::string render_summary(const SummaryReport& r, bool globals, const Screen& screen) {
  std::string text = head(r, screen) + more_facts(r, screen) + globals_fact(r, screen);
  text += byte_table("bytes by kind", r.by_kind, 6, screen);
  text += byte_table("bytes by type", r.by_dtype, 4, screen);
  text += root_table(r, 4, screen);
  if (!r.notes.empty()) {
    text += screen.paint(Tint::kBold, "remarks") + "\n" + render_notes(r.notes, 4, screen);
  }
  text = first_lines(text, kMostLines);
  if (globals) text += globals_table(r, screen);
  return text;
}

}  // namespace tessera::tools

#include "tools/render/audit.h"

#include <fmt/format.h>
#include <tessera/base/text.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "tools/documents/audit.h"
#include "tools/render/number_text.h"
#include "tools/render/render.h"
#include "tools/render/table.h"

namespace tessera::tools {
namespace {

constexpr std::size_t kShownAuditFindings = 40;
constexpr std::size_t kShownRetention = 10;
constexpr std::size_t kShownLines = 60;
constexpr int kPictureHeight = 12;
constexpr std::int64_t kLineHeights = 1000;  // heights of a line

std::string step_cell(const std::optional<double>& step) {
  return step ? fmt::format("{:g}", *step) : "-";
}

Cell state_cell(const AuditedCheckpoint& row) {
  if (row.is_refused) return {"not understood", Tint::kDim};
  if (!row.complete) return {"damaged", Tint::kRed};
  if (!row.same_as.empty()) return {"as " + printable(row.same_as), Tint::kRed};
  return row.sound ? Cell{"sound", Tint::kGreen} : Cell{"unsound", Tint::kRed};
}

std::string checkpoints_table(const AuditReport& r, const Screen& screen) {
  Table table({{"checkpoint", false, 1},
               {"step", true},
               {"stored", true},
               {"optimizer", true},
               {"format"},
               {"bytes", true},
               {"state", false, 2}});
  for (const AuditedCheckpoint& row : r.checkpoints) {
    std::string name = printable(row.name);
    if (row.is_latest) name += fmt::format(" <- {}", printable(r.pointer));
    table.add({name, step_cell(row.step()), step_cell(row.stored_step),
               step_cell(row.optimizer_step), row.format,
               row.bytes || row.complete ? format_bytes(row.bytes) : "-", state_cell(row)});
  }
  return table.render(screen);
}

/// The values that there are as heights of one scale.
std::vector<std::int64_t> heights(const std::vector<std::optional<double>>& values) {
  double low = INFINITY, high = -INFINITY;
  for (const auto& value : values)
    if (value && std::isfinite(*value)) low = std::min(low, *value), high = std::max(high, *value);
  std::vector<std::int64_t> out;
  for (const auto& value : values) {
    if (!value || !std::isfinite(*value))
      out.push_back(0);
    else
      out.push_back(high > low ? 1 + std::llround((*value - low) / (high - low) *
                                                  static_cast<double>(kLineHeights - 1))
                               : kLineHeights / 2);
  }
  return out;
}

/// The values of the checkpoints of its own series.
std::vector<std::optional<double>> own_values(const std::vector<AuditedCheckpoint>& rows,
                                              const std::string& series,
                                              const std::vector<std::optional<double>>& values) {
  std::vector<std::optional<double>> own;
  for (std::size_t i = 0; i < rows.size(); ++i)
    if (rows[i].series == series) own.push_back(values[i]);
  return own;
}

std::string ends_text(const std::vector<std::optional<double>>& values) {
  const auto first = std::ranges::find_if(values, [](const auto& v) { return v.has_value(); });
  const auto last =
      std::find_if(values.rbegin(), values.rend(), [](const auto& v) { return v.has_value(); });
  if (first == values.end()) return "-";
  return fmt::format("{} to {}", real_text(**first), real_text(**last));
}

std::string line_text(const std::vector<std::optional<double>>& values) {
  if (std::ranges::none_of(values, [](const auto& v) { return v.has_value(); })) return "";
  return sparkline(rebinned(heights(values), std::min<std::size_t>(values.size(), 32)));
}

std::string layers_table(const AuditReport& r, const Screen& screen) {
  Table table({{"layer", false, 1},
               {"|w|"},
               {"over steps", false, 0, true},
               {"update"},
               {"", false, 0, true},
               {"max v"},
               {"", false, 0, true}});
  for (std::size_t i = 0; i < std::min(kShownLines, r.layers.size()); ++i) {
    const AuditLayer& layer = r.layers[i];
    const auto own = [&](const auto& values) {
      return own_values(r.checkpoints, layer.series, values);
    };
    table.add({printable(layer.name), ends_text(own(layer.norm)), line_text(own(layer.norm)),
               ends_text(own(layer.update)), line_text(own(layer.update)),
               ends_text(own(layer.v_max)), line_text(own(layer.v_max))});
  }
  if (table.empty()) return {};
  std::string text = "\n" + table.render(screen);
  if (r.layers.size() > kShownLines)
    text += fmt::format("... and {} more layers: --format json has all\n",
                        r.layers.size() - kShownLines);
  return text;
}

std::string sampling_text(const AuditSampling& s) {
  if (s.every <= 1) return fmt::format("read {} of tensors\n", format_bytes(s.bytes_read));
  return fmt::format(
      "read {} of {}: every {}th block. With 95 % confidence what fills {} of a tensor's blocks "
      "was seen; norms are within {} (standard error)\n",
      format_bytes(s.bytes_read), format_bytes(s.bytes), s.every, percent_text(s.seen_share),
      percent_text(s.norm_error));
}

std::string retention_text(const AuditReport& r) {
  std::string text;
  for (std::size_t i = 0; i < std::min(kShownRetention, r.retention.size()); ++i)
    text += fmt::format("  could go  {}  {} ({})\n", printable(r.retention[i].name),
                        format_bytes(r.retention[i].bytes), r.retention[i].reason);
  if (r.retention.size() > kShownRetention)
    text += fmt::format("  ... and {} more\n", r.retention.size() - kShownRetention);
  return text;
}

/// One tensor's values, a column each, the lowest at the bottom.
std::string picture(const TrendReport& r, const TrendLine& line, const Screen& screen) {
  const auto own = own_values(r.checkpoints, line.series, line.values);
  const auto columns = static_cast<std::size_t>(std::clamp(screen.width - 4, 16, 100));
  std::vector<std::int64_t> bars = heights(own);
  if (bars.size() > columns) bars = rebinned(bars, columns);
  const std::size_t wide =
      std::max<std::size_t>(1, std::min<std::size_t>(8, columns / bars.size()));
  std::vector<std::int64_t> widened;
  for (const std::int64_t bar : bars) widened.insert(widened.end(), wide, bar);
  std::string text;
  for (const std::string& row : histogram_lines(widened, kPictureHeight)) text += "  " + row + "\n";
  return text;
}

}  // namespace

std::string render_audit(const AuditReport& r, const Screen& screen) {
  std::string text = checkpoints_table(r, screen);
  if (r.deep) text += sampling_text(r.sampling);
  text += layers_table(r, screen);
  if (!r.findings.empty()) text += "\n" + render_notes(r.findings, kShownAuditFindings, screen);
  text += retention_text(r);
  if (!r.notes.empty()) text += render_notes(r.notes, 5, screen);
  text += "\n";
  if (r.newest_sound.empty())
    text += screen.paint(Tint::kRed, "no checkpoint is sound") + "\n";
  else
    text += fmt::format("resume from {}\n", screen.paint(Tint::kBold, printable(r.newest_sound)));
  return text;
}

std::string render_trend(const TrendReport& r, const Screen& screen) {
  std::string text;
  Table table({{"tensor", false, 1},
               {std::string(trend_name(r.of))},
               {"least", true},
               {"most", true},
               {"over steps", false, 0, true}});
  for (std::size_t i = 0; i < std::min(kShownLines, r.lines.size()); ++i) {
    const TrendLine& line = r.lines[i];
    const auto own = own_values(r.checkpoints, line.series, line.values);
    std::optional<double> least, most;
    for (const auto& value : own) {
      if (!value) continue;
      least = least ? std::min(*least, *value) : *value;
      most = most ? std::max(*most, *value) : *value;
    }
    table.add({printable(line.tensor), ends_text(own), real_text(least), real_text(most),
               line_text(own)});
  }
  text += r.lines.empty()
              ? fmt::format(
                    "no tensor that was asked for has optimizer state, which {} is taken from\n",
                    trend_name(r.of))
              : table.render(screen);
  if (r.lines.size() == 1) text += picture(r, r.lines[0], screen);
  if (r.lines.size() > kShownLines)
    text += fmt::format("... and {} more: --format json has all\n", r.lines.size() - kShownLines);
  std::optional<double> first, last;
  for (const AuditedCheckpoint& row : r.checkpoints) {
    const auto step = row.step();
    if (!step) continue;
    first = first ? std::min(*first, *step) : *step;
    last = last ? std::max(*last, *step) : *step;
  }
  if (first)
    text += counted(r.checkpoints.size(), "checkpoint") +
            (*first == *last ? fmt::format(", step {:g}\n", *first)
                             : fmt::format(", steps {:g} to {:g}\n", *first, *last));
  text += sampling_text(r.sampling);
  return text;
}

}  // namespace tessera::tools

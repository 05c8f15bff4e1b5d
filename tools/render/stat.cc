#include <fmt/format.h>
#include <tessera/base/text.h>

#include <algorithm>

#include "tools/render/number_text.h"
#include "tools/render/render.h"
#include "tools/render/table.h"

namespace tessera::tools {
namespace {

constexpr std::size_t kSparkColumns = 16;
constexpr int kHistogramHeight = 6;

std::string special_text(const TensorStat& t) {
  std::vector<std::string> parts;
  if (t.nan) parts.push_back(fmt::format("{} NaN", count_text(static_cast<std::uint64_t>(t.nan))));
  const std::int64_t infinite = t.pos_inf + t.neg_inf;
  if (infinite)
    parts.push_back(fmt::format("{} Inf", count_text(static_cast<std::uint64_t>(infinite))));
  if (t.all_zero)
    parts.emplace_back("all zero");
  else if (t.constant)
    parts.emplace_back("constant");
  if (!t.skipped.empty()) parts.push_back(printable(t.skipped));
  return fmt::format("{}", fmt::join(parts, ", "));
}

double zero_fraction(const TensorStat& t) {
  return t.count ? static_cast<double>(t.zeros) / static_cast<double>(t.count) : 0;
}

/// The one that shows more: over magnitudes where nearly all elements fall into one bin of the other,
/// as they do beside a few that are very large.
const Histogram* clearer_histogram(const TensorStat& t) {
  constexpr double kCrowded = 0.75;
  if (!t.histogram || !t.log_histogram) return t.histogram ? &*t.histogram : nullptr;
  std::int64_t all = 0, most = 0;
  for (const std::int64_t count : t.histogram->counts) all += count, most = std::max(most, count);
  const bool crowded = static_cast<double>(most) > kCrowded * static_cast<double>(all);
  return crowded && !t.constant ? &*t.log_histogram : &*t.histogram;
}

std::string stat_table(const StatReport& r, const Screen& screen) {
  const auto is_pictured = [](const TensorStat& t) { return clearer_histogram(t) != nullptr; };
  const bool pictures = std::ranges::any_of(r.tensors, is_pictured);
  std::vector<Column> columns{{"name", false, 1}, {"min", true}, {"mean", true},
                              {"max", true},      {"std", true}, {"zeros", true}};
  if (pictures) columns.push_back({"histogram"});
  columns.push_back({"", false, 1});
  Table table(std::move(columns));
  for (const TensorStat& t : r.tensors) {
    const bool bad = t.nan || t.pos_inf || t.neg_inf;
    std::vector<Cell> row{
        printable(t.name),    real_text(t.min, 3),
        real_text(t.mean, 3), real_text(t.max, 3),
        real_text(t.std, 3),  t.skipped.empty() ? percent_text(zero_fraction(t)) : "-"};
    const Histogram* histogram = clearer_histogram(t);
    if (pictures)
      row.emplace_back(histogram ? sparkline(rebinned(histogram->counts, kSparkColumns)) : "",
                       Tint::kCyan);
    row.emplace_back(special_text(t), bad ? Tint::kRed : Tint::kYellow);
    table.add(std::move(row));
  }
  return table.empty() ? "no tensors\n" : table.render(screen);
}

/// Norms and quantiles, a line per tensor; wide screens show every quantile.
std::string spread_table(const StatReport& r, const Screen& screen) {
  constexpr int kWide = 130;
  constexpr std::size_t kNarrow = 5;  // as many find room on any screen
  std::vector<Column> columns{{"name", false, 1}, {"|max|", true}, {"L1", true}, {"L2", true}};
  std::vector<std::size_t> shown;
  for (std::size_t q = 0; q < r.quantiles.size(); ++q) {
    const bool tail_or_quarter = r.quantiles[q] != 0.10 && r.quantiles[q] != 0.90;
    if (!tail_or_quarter && r.quantiles.size() > kNarrow && screen.width < kWide) continue;
    shown.push_back(q);
    columns.push_back({percent_name(r.quantiles[q]) + "%", true});
  }
  Table table(std::move(columns));
  for (const TensorStat& t : r.tensors) {
    if (!t.abs_max) continue;
    std::vector<Cell> row{printable(t.name), real_text(t.abs_max, 3), real_text(t.l1, 3),
                          real_text(t.l2, 3)};
    for (const std::size_t q : shown)
      row.emplace_back(q < t.quantiles.size() ? real_text(t.quantiles[q], 3) : "-");
    table.add(std::move(row));
  }
  return table.empty() ? std::string() : "\n" + table.render(screen);
}

std::string histogram_text(const Histogram& h, const Screen& screen) {
  std::string text;
  for (const std::string& line : histogram_lines(h.counts, kHistogramHeight)) {
    text += "    " + screen.paint(Tint::kCyan, line) + "\n";
  }
  const std::string prefix = h.logarithmic ? "1e" : "";
  const std::string low = prefix + real_text(h.low);
  const std::string high = prefix + real_text(h.high);
  const int width =
      std::max(static_cast<int>(h.counts.size()), display_width(low) + display_width(high) + 1);
  text += "    " + low + pad_left(high, width - display_width(low)) + "\n";
  if (!h.logarithmic) return text;
  const std::string zeros =
      h.zeros ? fmt::format("; {} zeros apart", count_text(static_cast<std::uint64_t>(h.zeros)))
              : "";
  return text + screen.paint(Tint::kDim, "    magnitudes, each column a factor" + zeros) + "\n";
}

std::string norm_lines(const TensorStat& t, const Screen& screen) {
  if (t.row_norms.empty()) return {};
  std::vector<std::string> norms;
  for (const double norm : t.row_norms) norms.push_back(real_text(norm, 3));
  return fact_lines("row norms", fmt::format("{}", fmt::join(norms, " ")), 4, screen);
}

/// Those of tensors that stand in tables.
std::string norm_lists(const StatReport& r, const Screen& screen) {
  std::string text;
  for (const TensorStat& t : r.tensors)
    if (!t.row_norms.empty()) text += screen.wrap(printable(t.name), "") + norm_lines(t, screen);
  return text.empty() ? text : "\n" + text;
}

}  // namespace

std::string stat_in_full(const TensorStat& t, const std::vector<double>& quantiles,
                         const Screen& screen) {
  std::string text =
      name_and_facts(printable(t.name), fmt::format("{} {}", t.dtype, shape_text(t.shape)), screen);
  const auto number = [](std::int64_t n) { return count_text(static_cast<std::uint64_t>(n)); };
  if (!t.skipped.empty()) return text + fact_line("skipped", printable(t.skipped), screen);
  text +=
      fact_line("elements",
                fmt::format("{}; {} NaN, {} +Inf, {} -Inf; {} zeros ({}), {} subnormal",
                            number(t.count), number(t.nan), number(t.pos_inf), number(t.neg_inf),
                            number(t.zeros), percent_text(zero_fraction(t)), number(t.subnormal)),
                screen);
  if (t.first_nan) text += fact_line("first NaN", fmt::format("element {}", *t.first_nan), screen);
  if (t.first_inf) text += fact_line("first Inf", fmt::format("element {}", *t.first_inf), screen);
  text += fact_line("range",
                    fmt::format("{} .. {}, largest magnitude {}", real_text(t.min, 6),
                                real_text(t.max, 6), real_text(t.abs_max, 6)),
                    screen);
  text +=
      fact_line("mean", fmt::format("{} +- {}", real_text(t.mean, 6), real_text(t.std, 6)), screen);
  text += fact_line("norms", fmt::format("L1 {}, L2 {}", real_text(t.l1, 6), real_text(t.l2, 6)),
                    screen);
  if (t.outside_bf16 || t.outside_fp16) {
    text += fact_line("outside",
                      fmt::format("{} of bfloat16's range, {} of float16's", number(t.outside_bf16),
                                  number(t.outside_fp16)),
                      screen);
  }
  if (!t.quantiles.empty()) {
    std::vector<std::string> parts;
    for (std::size_t i = 0; i < t.quantiles.size(); ++i)
      parts.push_back(
          fmt::format("{}%: {}", percent_name(quantiles[i]), real_text(t.quantiles[i])));
    text += fact_lines("quantiles", fmt::format("{}", fmt::join(parts, "  ")), 3, screen);
  }
  text += norm_lines(t, screen);
  if (t.constant) text += fact_line("constant", "all elements are equal", screen);
  const Histogram* histogram = clearer_histogram(t);
  if (histogram && !histogram->counts.empty()) text += histogram_text(*histogram, screen);
  return text;
}

std::string render_stat(const StatReport& r, const Screen& screen) {
  std::string text = render_notes(grouped_notes(r.findings, "tensor"), 50, screen);
  if (!r.tensors.empty() && r.tensors.size() <= kStatInFull) {
    for (const TensorStat& tensor : r.tensors) text += stat_in_full(tensor, r.quantiles, screen);
  } else {
    text += stat_table(r, screen) + spread_table(r, screen) + norm_lists(r, screen);
  }
  text += screen.paint(Tint::kDim, fmt::format("{}, {} read", counted(r.measured, "tensor"),
                                               format_bytes(r.bytes))) +
          "\n";
  return text + render_notes(r.notes, 5, screen);
}

}  // namespace tessera::tools

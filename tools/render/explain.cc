// explain as people read it, and the tables of docs/*-codes.md.
#include <fmt/format.h>
#include <tessera/base/text.h>

#include <algorithm>

#include "tools/render/render.h"

namespace tessera::tools {
namespace {

constexpr int kCodeWidth = 11;
constexpr int kSeverityWidth = 9;
constexpr int kMostFieldLines = 12;  // of one field

/// "CK011", not "PATH".
bool is_numbered(const FindingInfo& row) { return is_digit(row.code.back()); }

CodePage page_of(const FindingInfo& row) {
  if (row.code.starts_with("OP0") || row.code.starts_with("ST0")) return CodePage::kOptim;
  return row.code.starts_with("AU0") ? CodePage::kAudit : CodePage::kVerify;
}

Tint tint_of(Severity severity) {
  if (severity == Severity::kError) return Tint::kRed;
  return severity == Severity::kWarning ? Tint::kYellow : Tint::kDim;
}

std::string_view exit_text(Severity severity) {
  switch (severity) {
    case Severity::kError:
      return "error: verify, optim, stat and audit exit with 1";
    case Severity::kWarning:
      return "warning: exit status 1 only with --strict";
    case Severity::kInfo:
      return "info: no effect on the exit status";
  }
  return {};
}

/// What the exit status is for each severity that the row names.
std::string exit_texts(const FindingInfo& row) {
  std::string text;
  for (const Severity severity : {Severity::kError, Severity::kWarning, Severity::kInfo})
    if (row.severities.find(severity_name(severity)) != std::string_view::npos)
      text += fmt::format("{}{}", text.empty() ? "" : "; ", exit_text(severity));
  return text;
}

/// Markdown without its marks, for a terminal.
std::string plain(std::string_view text) {
  std::string out(text);
  std::erase(out, '`');
  return out;
}

std::string entry(const FindingInfo& row, const Screen& screen) {
  std::string text =
      screen.paint(tint_of(row.severity), row.code) + fmt::format("  {}\n", row.severities);
  const auto add = [&](std::string_view label, std::string_view value) {
    if (!value.empty()) text += fact_lines(label, plain(value), kMostFieldLines, screen);
  };
  add("meaning", row.meaning);
  add("seen from", row.level);
  add("names", row.names);
  add("exit", exit_texts(row));
  add("cause", row.cause);
  add("cure", row.cure);
  return text;
}

std::string line(const FindingInfo& row, const Screen& screen) {
  const std::string meaning = plain(row.meaning);
  return screen.paint(tint_of(row.severity), pad_right(row.code, kCodeWidth)) +
         pad_right(severity_name(row.severity), kSeverityWidth) +
         screen.clip(meaning, screen.width - kCodeWidth - kSeverityWidth) + "\n";
}

std::string or_dash(std::string_view text) { return text.empty() ? "-" : std::string(text); }

}  // namespace

std::string render_explain(const std::vector<FindingInfo>& rows, const Screen& screen) {
  std::string text;
  const bool in_full = rows.size() < all_findings().size() / 2;
  for (const FindingInfo& row : rows)
    text += in_full ? (text.empty() ? "" : "\n") + entry(row, screen) : line(row, screen);
  if (!in_full) text += "\nckpt-inspect explain CODE prints the usual cause and what to do.\n";
  return text;
}

std::string codes_page(CodePage page) {
  const bool optim = page == CodePage::kOptim;
  std::string table = optim ? "| code | severity | meaning |\n|---|---|---|\n"
                            : "| code | severity | level | meaning | file, tensor |\n"
                              "|---|---|---|---|---|\n";
  std::string cures = "| code | usual cause | what to do |\n|---|---|---|\n";
  std::vector<FindingInfo> rows;
  for (const FindingInfo& row : all_findings())
    if (row.finding != Finding::kNone && page_of(row) == page) rows.push_back(row);
  std::ranges::stable_partition(rows, [](const FindingInfo& row) { return is_numbered(row); });
  for (const FindingInfo& row : rows) {
    if (optim)
      table += fmt::format("| {} | {} | {} |\n", row.code, row.severities, row.meaning);
    else
      table += fmt::format("| {} | {} | {} | {} | {} |\n", row.code, row.severities, row.level,
                           row.meaning, or_dash(row.names));
    cures += fmt::format("| `{}` | {} | {} |\n", row.code, row.cause, row.cure);
  }
  return table + "\n## Causes and cures\n\n" + cures;
}

}  // namespace tessera::tools

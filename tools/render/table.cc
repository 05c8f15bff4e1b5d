#include "tools/render/table.h"

#include <tessera/base/error.h>

#include <algorithm>

namespace tessera::tools {
namespace {

constexpr int kGap = 2;
constexpr int kLeastWidth = 8;
constexpr int kMostGiving = 2;
/// Fewer rows that say the same are shorter than a line that says it for them.
constexpr std::size_t kLeastRowsAlike = 3;
// Where names stay whole: a longer cell overflows its column, and values are cut all the same.
constexpr int kWidestColumn = 200;
constexpr int kLongestValue = 300;

}  // namespace

Table::Table(std::vector<Column> columns) : columns_(std::move(columns)) {
  for (const Column& column : columns_)
    seen_.push_back({.widest = display_width(column.title), .first = {}, .prefix = {}});
}

void Table::add(std::vector<Cell> cells) {
  measure(cells);
  rows_.push_back(std::move(cells));
}

void Table::measure(std::span<const Cell> cells) {
  TESSERA_CHECK(cells.size() == columns_.size());
  for (std::size_t c = 0; c < cells.size(); ++c) {
    Seen& seen = seen_[c];
    const std::string& text = cells[c].text;
    seen.widest = std::max(seen.widest, display_width(text));
    if (count_ == 0) {
      seen.first = text;
      seen.prefix = text.substr(0, text.rfind('.') + 1);
      continue;
    }
    seen.all_same = seen.all_same && text == seen.first;
    if (seen.prefix.empty() || text.starts_with(seen.prefix)) continue;
    const auto same = std::ranges::mismatch(seen.prefix, text);
    seen.prefix.erase(same.in1, seen.prefix.end());
    seen.prefix.erase(seen.prefix.rfind('.') + 1);
  }
  ++count_;
}

/// How much `room` falls short: negative.
int Table::missing_room(const TableLines::Fit& fit, int room) const {
  int columns = 0;
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    if (fit.said_once[c] || (fit.two_lines && c == 0)) continue;
    room -= fit.widths[c];
    ++columns;
  }
  if (fit.two_lines) room -= kGap;  // the second line stands behind the name's
  return room - kGap * std::max(0, columns - 1);
}

void Table::say_once(TableLines::Fit& fit) const {
  for (std::size_t c = named() ? 1 : 0; c < columns_.size(); ++c) {
    const Seen& seen = seen_[c];
    if (count_ < kLeastRowsAlike || !seen.all_same || columns_[c].title.empty()) continue;
    fit.said_once[c] = true;
    if (!seen.first.empty())
      fit.once += (fit.once.empty() ? "" : ", ") + columns_[c].title + " " + seen.first;
  }
  if (!named() || count_ < kLeastRowsAlike || seen_[0].prefix.empty()) return;
  fit.prefix = seen_[0].prefix;
  fit.widths[0] =
      std::max(display_width(columns_[0].title), seen_[0].widest - display_width(fit.prefix));
}

void Table::narrow(int level, int& room, TableLines::Fit& fit) const {
  // The widest column of the level gives way first, one cell at a time, so that narrow ones stay
  // whole.
  while (room < 0) {
    std::size_t widest = columns_.size();
    for (std::size_t c = 0; c < columns_.size(); ++c) {
      if (columns_[c].gives != level || fit.widths[c] <= kLeastWidth || fit.said_once[c]) continue;
      if (level == 1 && c == 0 && named()) continue;
      if (widest == columns_.size() || fit.widths[c] > fit.widths[widest]) widest = c;
    }
    if (widest == columns_.size()) return;
    --fit.widths[widest];
    ++room;
  }
}

TableLines::Fit Table::fitted(int room, bool whole) const {
  TableLines::Fit fit;
  for (const Seen& seen : seen_)
    fit.widths.push_back(whole ? std::min(seen.widest, kWidestColumn) : seen.widest);
  fit.said_once.assign(columns_.size(), false);
  if (whole || missing_room(fit, room) >= 0) return fit;
  say_once(fit);
  int left = missing_room(fit, room);
  for (int level = 2; level > 0 && left < 0; --level) narrow(level, left, fit);
  for (std::size_t c = 0; c < columns_.size() && left < 0; ++c)
    if (columns_[c].spare && !fit.said_once[c]) {
      fit.said_once[c] = true;
      left += fit.widths[c] + kGap;
    }
  if (left < 0 && named()) {
    fit.two_lines = true;
    for (std::size_t c = 1; c < columns_.size(); ++c) fit.widths[c] = seen_[c].widest;
    left = missing_room(fit, room);
    for (int level = 2; level > 0 && left < 0; --level) narrow(level, left, fit);
  }
  if (left >= 0) return fit;
  // What was cut did not help: whole cells, on as many lines as they take.
  fit.breaks = true;
  for (std::size_t c = named() ? 1 : 0; c < columns_.size(); ++c)
    fit.widths[c] = std::min(seen_[c].widest, std::max(1, room - kGap));
  return fit;
}

TableLines Table::lines(const Screen& screen, std::string_view indent) const {
  return {screen, indent, columns_, fitted(screen.width - display_width(indent), screen.whole)};
}

std::string Table::render(const Screen& screen, std::string_view indent) const {
  const TableLines lines = this->lines(screen, indent);
  std::string result = lines.head();
  for (const std::vector<Cell>& row : rows_) result += lines.line(row);
  return result;
}

std::string TableLines::cell(std::size_t c, std::string_view text, Tint tint) const {
  const int longest = columns_[c].gives == kMostGiving ? kLongestValue : 1'000'000;
  const bool name = c == 0 && columns_[0].gives == 1;
  const std::string clipped = screen_.whole ? clip_middle(text, std::max(longest, fit_.widths[c]))
                              : name        ? std::string(text)
                                            : clip_middle(text, fit_.widths[c]);
  const int missing = fit_.widths[c] - display_width(clipped);
  const std::string space(static_cast<std::size_t>(std::max(0, missing)), ' ');
  const std::string painted = screen_.paint(tint, clipped);
  return columns_[c].right ? space + painted : painted + space;
}

template <class TextOf, class TintOf>
std::string TableLines::line(TextOf&& text_of, TintOf&& tint_of) const {
  std::string line = indent_;
  const int start = display_width(indent_);
  int at = start;  // columns of the line that are taken
  bool first = true;
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    if (fit_.said_once[c]) continue;
    const bool below = c > 0 || !fit_.two_lines;
    if (fit_.breaks && below && !first && at > start + kGap &&
        at + kGap + fit_.widths[c] > screen_.width) {
      line.erase(line.find_last_not_of(' ') + 1);
      line += "\n" + indent_;
      at = start;
    }
    if (!first) line += std::string(kGap, ' ');
    if (!first) at += kGap;
    first = false;
    if (below) {
      line += cell(c, text_of(c), tint_of(c));
      at += fit_.widths[c];
      continue;
    }
    // As many lines as the name takes: a cut one names nothing.
    const std::string name = wrap(text_of(c), screen_.width, indent_);
    line = screen_.paint(tint_of(c), name.substr(0, name.find_last_not_of('\n') + 1));
    if (columns_.size() > 1) line += "\n" + indent_;
  }
  line.erase(line.find_last_not_of(' ') + 1);
  return line + "\n";
}

std::string TableLines::head() const {
  const bool titled = std::any_of(columns_.begin(), columns_.end(),
                                  [](const Column& column) { return !column.title.empty(); });
  std::string above;
  if (!fit_.once.empty()) above += wrap("all rows: " + fit_.once, screen_.width, indent_);
  if (!fit_.prefix.empty()) above += indent_ + "names below " + fit_.prefix + "\n";
  if (!above.empty()) above = screen_.paint(Tint::kDim, above.substr(0, above.size() - 1)) + "\n";
  if (!titled) return above;
  return above + line([&](std::size_t c) { return std::string_view(columns_[c].title); },
                      [](std::size_t) { return Tint::kDim; });
}

std::string TableLines::line(std::span<const Cell> cells) const {
  return line(
      [&](std::size_t c) {
        return std::string_view(cells[c].text).substr(c == 0 ? fit_.prefix.size() : 0);
      },
      [&](std::size_t c) { return cells[c].tint; });
}

}  // namespace tessera::tools

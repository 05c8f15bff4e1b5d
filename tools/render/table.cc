#include "tools/render/table.h"

#include <tessera/base/error.h>

#include <algorithm>

namespace tessera::tools {
namespace {

constexpr int kGap = 2;
constexpr int kLeastWidth = 8;
constexpr int kMostGiving = 2;
// Where names stay whole: a longer cell overflows its column, and values are cut all the same.
constexpr int kWidestColumn = 200;
constexpr int kLongestValue = 300;

}  // namespace

Table::Table(std::vector<Column> columns) : columns_(std::move(columns)) {
  for (const Column& column : columns_) widest_.push_back(display_width(column.title));
}

void Table::add(std::vector<Cell> cells) {
  measure(cells);
  rows_.push_back(std::move(cells));
}

void Table::measure(std::span<const Cell> cells) {
  TESSERA_CHECK(cells.size() == columns_.size());
  for (std::size_t c = 0; c < cells.size(); ++c)
    widest_[c] = std::max(widest_[c], display_width(cells[c].text));
}

void Table::narrow(int level, int& room, std::vector<int>& widths) const {
  // The widest column of the level gives way first, one cell at a time, so that narrow ones stay
  // whole.
  while (room < 0) {
    std::size_t widest = columns_.size();
    for (std::size_t c = 0; c < columns_.size(); ++c) {
      if (columns_[c].gives != level || widths[c] <= kLeastWidth) continue;
      if (widest == columns_.size() || widths[c] > widths[widest]) widest = c;
    }
    if (widest == columns_.size()) return;
    --widths[widest];
    ++room;
  }
}

std::vector<int> Table::fitted_widths(int room, bool whole) const {
  std::vector<int> widths = widest_;
  if (whole) {
    for (int& width : widths) width = std::min(width, kWidestColumn);
    return widths;
  }
  for (const int width : widths) room -= width;
  room -= kGap * (static_cast<int>(columns_.size()) - 1);
  for (int level = kMostGiving; level > 0 && room < 0; --level) narrow(level, room, widths);
  return widths;
}

TableLines Table::lines(const Screen& screen, std::string_view indent) const {
  return {screen, indent, columns_,
          fitted_widths(screen.width - display_width(indent), screen.whole)};
}

std::string Table::render(const Screen& screen, std::string_view indent) const {
  const TableLines lines = this->lines(screen, indent);
  std::string result = lines.head();
  for (const std::vector<Cell>& row : rows_) result += lines.line(row);
  return result;
}

template <class TextOf, class TintOf>
std::string TableLines::line(TextOf&& text_of, TintOf&& tint_of) const {
  std::string line = indent_;
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    const int longest = columns_[c].gives == kMostGiving ? kLongestValue : 1'000'000;
    const std::string clipped =
        clip_middle(text_of(c), screen_.whole ? std::max(longest, widths_[c]) : widths_[c]);
    const int missing = widths_[c] - display_width(clipped);
    const std::string space(static_cast<std::size_t>(std::max(0, missing)), ' ');
    const std::string painted = screen_.paint(tint_of(c), clipped);
    if (c) line += std::string(kGap, ' ');
    line += columns_[c].right ? space + painted : painted + space;
  }
  line.erase(line.find_last_not_of(' ') + 1);
  return line + "\n";
}

std::string TableLines::head() const {
  const bool titled = std::any_of(columns_.begin(), columns_.end(),
                                  [](const Column& column) { return !column.title.empty(); });
  if (!titled) return {};
  return line([&](std::size_t c) { return std::string_view(columns_[c].title); },
              [](std::size_t) { return Tint::kDim; });
}

std::string TableLines::line(std::span<const Cell> cells) const {
  return line([&](std::size_t c) { return std::string_view(cells[c].text); },
              [&](std::size_t c) { return cells[c].tint; });
}

}  // namespace tessera::tools

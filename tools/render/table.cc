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

void Table::add(std::vector<Cell> cells) {
  TESSERA_CHECK(cells.size() == columns_.size());
  for (const Cell& cell : cells) {
    text_ += cell.text;
    cells_.push_back({text_.size(), cell.tint});
  }
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
  std::vector<int> widths;
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    int width = display_width(columns_[c].title);
    for (std::size_t i = c; i < cells_.size(); i += columns_.size())
      width = std::max(width, display_width(text(i)));
    widths.push_back(width);
    room -= width;
  }
  if (whole) {
    for (int& width : widths) width = std::min(width, kWidestColumn);
    return widths;
  }
  room -= kGap * (static_cast<int>(columns_.size()) - 1);
  for (int level = kMostGiving; level > 0 && room < 0; --level) narrow(level, room, widths);
  return widths;
}

std::string Table::render(const Screen& screen, std::string_view indent) const {
  const std::vector<int> widths = fitted_widths(screen.width - display_width(indent), screen.whole);
  std::string result;
  const auto add_line = [&](auto&& text_of, auto&& tint_of) {
    std::string line(indent);
    for (std::size_t c = 0; c < columns_.size(); ++c) {
      const int longest = columns_[c].gives == kMostGiving ? kLongestValue : 1'000'000;
      const std::string clipped =
          clip_middle(text_of(c), screen.whole ? std::max(longest, widths[c]) : widths[c]);
      const int missing = widths[c] - display_width(clipped);
      const std::string space(static_cast<std::size_t>(std::max(0, missing)), ' ');
      const std::string painted = screen.paint(tint_of(c), clipped);
      if (c) line += std::string(kGap, ' ');
      line += columns_[c].right ? space + painted : painted + space;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    result += line + "\n";
  };
  const bool titled = std::any_of(columns_.begin(), columns_.end(),
                                  [](const Column& column) { return !column.title.empty(); });
  if (titled) {
    add_line([&](std::size_t c) { return std::string_view(columns_[c].title); },
             [](std::size_t) { return Tint::kDim; });
  }
  for (std::size_t row = 0; row < cells_.size(); row += columns_.size()) {
    add_line([&](std::size_t c) { return text(row + c); },
             [&](std::size_t c) { return cells_[row + c].tint; });
  }
  return result;
}

}  // namespace tessera::tools

// The chunk map of show: which chunk holds which part of a tensor, as characters.
//
//   one sharded dim (or flat slices)      two sharded dims: rows down, columns across
//     00000000111111112222222233333333      0000000011111111
//                                           2222222233333333
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "tools/render/number_text.h"
#include "tools/render/render.h"

namespace tessera::tools {
namespace {

constexpr int kMostColumns = 64;
constexpr int kMostRows = 16;
constexpr std::string_view kMarks =
    "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";

char mark_of(std::size_t chunk) { return kMarks[chunk % kMarks.size()]; }

/// Dims along which some chunk does not span the tensor.
std::vector<std::size_t> sharded_dims(const LsTensor& t) {
  std::vector<std::size_t> dims;
  for (std::size_t d = 0; d < t.shape.size(); ++d) {
    const bool cut = std::any_of(t.table.begin(), t.table.end(),
                                 [&](const ChunkRow& row) { return row.lengths[d] != t.shape[d]; });
    if (cut) dims.push_back(d);
  }
  return dims;
}

/// Cells of `cells` whose middle lies in [begin, end) of `extent`, at least one for what is not
/// empty.
std::pair<int, int> cell_range(std::int64_t begin, std::int64_t end, std::int64_t extent,
                               int cells) {
  if (begin >= end || extent <= 0) return {0, 0};
  const double scale = static_cast<double>(cells) / static_cast<double>(extent);
  const int first = std::min(cells - 1, static_cast<int>(static_cast<double>(begin) * scale + 0.5));
  const int last = static_cast<int>(static_cast<double>(end) * scale + 0.5);
  return {first, std::clamp(last, first + 1, cells)};
}

int cells_for(std::int64_t extent, int most) {
  if (extent >= most) return most;
  return static_cast<int>(extent) *
         std::max(1, most / static_cast<int>(std::max<std::int64_t>(1, extent)) / 2);
}

using Grid = std::vector<std::string>;

void paint_cells(Grid& grid, std::pair<int, int> rows, std::pair<int, int> columns, char mark) {
  for (int r = rows.first; r < rows.second; ++r) {
    for (int c = columns.first; c < columns.second; ++c) {
      char& cell = grid[static_cast<std::size_t>(r)][static_cast<std::size_t>(c)];
      if (cell == '.') cell = mark;
    }
  }
}

Grid strip_of_flat(const LsTensor& t) {
  const int columns = cells_for(t.numel, kMostColumns);
  Grid grid(1, std::string(static_cast<std::size_t>(columns), '.'));
  for (std::size_t i = 0; i < t.table.size(); ++i) {
    paint_cells(grid, {0, 1},
                cell_range(t.table[i].flat_begin, t.table[i].flat_end, t.numel, columns),
                mark_of(i));
  }
  return grid;
}

Grid grid_of_boxes(const LsTensor& t, std::size_t row_dim, std::size_t column_dim, bool two) {
  const int rows =
      two ? std::min<int>(kMostRows,
                          static_cast<int>(std::min<std::int64_t>(t.shape[row_dim], kMostRows)))
          : 1;
  const int columns = cells_for(t.shape[column_dim], kMostColumns);
  Grid grid(static_cast<std::size_t>(rows), std::string(static_cast<std::size_t>(columns), '.'));
  for (std::size_t i = 0; i < t.table.size(); ++i) {
    const ChunkRow& c = t.table[i];
    const auto across =
        cell_range(c.offsets[column_dim], c.offsets[column_dim] + c.lengths[column_dim],
                   t.shape[column_dim], columns);
    const auto down = two ? cell_range(c.offsets[row_dim], c.offsets[row_dim] + c.lengths[row_dim],
                                       t.shape[row_dim], rows)
                          : std::pair{0, 1};
    paint_cells(grid, down, across, mark_of(i));
  }
  return grid;
}

Tint tint_of(char mark) {
  constexpr Tint kTints[] = {Tint::kCyan, Tint::kGreen, Tint::kYellow, Tint::kBold};
  const std::size_t at = kMarks.find(mark);
  return at == std::string_view::npos ? Tint::kRed : kTints[at % std::size(kTints)];
}

/// Runs of one mark in one colour.
std::string painted(const std::string& line, const Screen& screen) {
  std::string text;
  for (std::size_t i = 0; i < line.size();) {
    const std::size_t end = std::min(line.find_first_not_of(line[i], i), line.size());
    text += screen.paint(tint_of(line[i]), line.substr(i, end - i));
    i = end;
  }
  return text;
}

}  // namespace

std::string chunk_map(const LsTensor& t, const Screen& screen) {
  if (t.table.size() < 2 || t.numel == 0) return {};
  const std::vector<std::size_t> dims = sharded_dims(t);
  const bool flat =
      std::any_of(t.table.begin(), t.table.end(), [](const ChunkRow& row) { return row.is_flat; });
  if (flat && !dims.empty()) return {};  // slices of boxes: the table says it better
  if (!flat && dims.empty()) return "  every chunk holds the whole tensor\n";
  Grid grid;
  std::string legend;
  if (flat) {
    grid = strip_of_flat(t);
    legend = fmt::format("{} in row-major order",
                         counted(static_cast<std::uint64_t>(t.numel), "element"));
  } else if (dims.size() == 1) {
    grid = grid_of_boxes(t, 0, dims[0], false);
    legend = fmt::format("dim {}, {} long", dims[0],
                         count_text(static_cast<std::uint64_t>(t.shape[dims[0]])));
  } else {
    grid = grid_of_boxes(t, dims[0], dims[1], true);
    legend = fmt::format("dim {} down ({}), dim {} across ({})", dims[0], t.shape[dims[0]], dims[1],
                         t.shape[dims[1]]);
    if (dims.size() > 2) legend += "; more dims are cut";
  }
  std::string text;
  for (const std::string& line : grid) text += "  " + painted(line, screen) + "\n";
  return text + "  " + screen.paint(Tint::kDim, legend) + "\n";
}

}  // namespace tessera::tools

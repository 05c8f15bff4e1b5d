#pragma once
// Table: rows of cells in aligned columns that fit the screen. Columns may give way: they are
// clipped in the middle, unless the screen wants names whole.
#include <string>
#include <string_view>
#include <vector>

#include "tools/render/screen.h"

namespace tessera::tools {

struct Column {
  std::string title;
  bool right = false;  // numbers
  int gives = 0;       // 0: never clipped; columns that give more are clipped first
};

struct Cell {
  Cell(std::string t) : text(std::move(t)) {}  // NOLINT: a cell is its text
  Cell(const char* t) : text(t) {}             // NOLINT
  Cell(std::string_view t) : text(t) {}        // NOLINT
  Cell(std::string t, Tint with) : text(std::move(t)), tint(with) {}
  std::string text;
  Tint tint = Tint::kPlain;
};

class Table {
 public:
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  /// As many cells as columns.
  void add(std::vector<Cell> cells);
  bool empty() const { return cells_.empty(); }
  /// Lines, each behind `indent`; titles first unless all are empty.
  std::string render(const Screen& screen, std::string_view indent = "") const;

 private:
  struct StoredCell {
    std::size_t end = 0;  // in text_; begins where the one before ends
    Tint tint = Tint::kPlain;
  };
  std::string_view text(std::size_t cell) const {
    const std::size_t begin = cell == 0 ? 0 : cells_[cell - 1].end;
    return std::string_view(text_).substr(begin, cells_[cell].end - begin);
  }
  std::vector<int> fitted_widths(int room, bool whole) const;
  void narrow(int level, int& room, std::vector<int>& widths) const;
  std::vector<Column> columns_;
  std::string text_;  // of all cells, as there may be a million rows
  std::vector<StoredCell> cells_;
};

}  // namespace tessera::tools

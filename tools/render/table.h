#pragma once
// Table: rows of cells in aligned columns that fit the screen. Columns may give way: they are
// clipped in the middle, unless the screen wants names whole.
#include <span>
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

/// How the rows of a table are laid out: widths of columns are known.
class TableLines {
 public:
  /// Titles; "" where all are empty.
  std::string head() const;
  /// As many cells as columns.
  std::string line(std::span<const Cell> cells) const;

 private:
  friend class Table;
  TableLines(const Screen& screen, std::string_view indent, const std::vector<Column>& columns,
             std::vector<int> widths)
      : screen_(screen), indent_(indent), columns_(columns), widths_(std::move(widths)) {}
  template <class TextOf, class TintOf>
  std::string line(TextOf&& text_of, TintOf&& tint_of) const;

  const Screen& screen_;
  const std::string indent_;
  const std::vector<Column>& columns_;
  const std::vector<int> widths_;
};

class Table {
 public:
  explicit Table(std::vector<Column> columns);
  /// As many cells as columns.
  void add(std::vector<Cell> cells);
  /// For rows that are too many to keep: makes room for one, which lines() then lays out.
  void measure(std::span<const Cell> cells);
  bool empty() const { return rows_.empty(); }
  /// Lines, each behind `indent`; titles first unless all are empty.
  std::string render(const Screen& screen, std::string_view indent = "") const;
  /// Refers to the table and the screen.
  TableLines lines(const Screen& screen, std::string_view indent = "") const;

 private:
  std::vector<int> fitted_widths(int room, bool whole) const;
  void narrow(int level, int& room, std::vector<int>& widths) const;
  std::vector<Column> columns_;
  std::vector<int> widest_;  // by column: the title's width, or the widest cell's
  std::vector<std::vector<Cell>> rows_;
};

}  // namespace tessera::tools

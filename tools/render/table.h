#pragma once
// Table: rows of cells in aligned columns that fit the screen. Where they do not fit, on a terminal:
//
//   1. a column whose cells are all equal is said once, above the titles
//   2. what all names begin with becomes a heading
//   3. columns of values are clipped in the middle
//   4. a row takes two lines: its name, which is never cut, and the rest
//
// A screen that wants names whole (a pipe) gets every cell as it is.
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tools/render/screen.h"

namespace tessera::tools {

struct Column {
  std::string title;
  bool right = false;  // numbers
  int gives = 0;       // 0: never clipped; 1: a name; 2: a value, which is clipped first
  bool spare =
      false;  // a picture of what another column says: left out before a row takes two lines
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
  /// How the table was made to fit.
  struct Fit {
    std::vector<int> widths;
    std::vector<bool> said_once;  // by column
    std::string once;             // what they say: "type float32, kind param"
    std::string prefix;           // of all names
    bool two_lines = false;
    bool breaks = false;  // between cells, where the line ends
  };
  TableLines(const Screen& screen, std::string_view indent, const std::vector<Column>& columns,
             Fit fit)
      : screen_(screen), indent_(indent), columns_(columns), fit_(std::move(fit)) {}
  template <class TextOf, class TintOf>
  std::string line(TextOf&& text_of, TintOf&& tint_of) const;
  std::string cell(std::size_t c, std::string_view text, Tint tint) const;

  const Screen& screen_;
  const std::string indent_;
  const std::vector<Column>& columns_;
  const Fit fit_;
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
  /// What is known of a column when all rows were seen.
  struct Seen {
    int widest = 0;     // the title's width, or the widest cell's
    std::string first;  // the first row's text
    bool all_same = true;
    std::string prefix;  // of a column of names: what all begin with, up to a dot
  };
  int missing_room(const TableLines::Fit& fit, int room) const;
  void say_once(TableLines::Fit& fit) const;
  void narrow(int level, int& room, TableLines::Fit& fit) const;
  TableLines::Fit fitted(int room, bool whole) const;
  bool named() const { return !columns_.empty() && columns_[0].gives == 1; }

  std::vector<Column> columns_;
  std::vector<Seen> seen_;
  std::size_t count_ = 0;
  std::vector<std::vector<Cell>> rows_;
};

}  // namespace tessera::tools

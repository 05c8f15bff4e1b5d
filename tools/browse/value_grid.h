#pragma once
// Where one looks in a tensor: planes of rows and columns, the last two dims. What has one dim is
// wrapped: as many elements in a line as there is room for. Pure.
#include <tessera/ops/show.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tools/browse/picture.h"
#include "tools/browse/want.h"

namespace tessera::tools {

/// The elements of a window, as `show` takes them.
std::vector<SliceRange> slice_of(std::span<const std::int64_t> shape, const ValueWindow& window);

class ValueGrid {
 public:
  void set_shape(std::vector<std::int64_t> shape);
  /// Room for one side's lines and columns of text.
  void set_room(int width, int height);
  /// The widest text of an element that was seen.
  void set_cell(int width);
  const ValueWindow& window() const { return window_; }
  bool is_empty() const;

  void move(std::int64_t rows, std::int64_t columns);
  void page(int by) { move(by * window_.rows, 0); }
  void to_row_end(bool last);     // first or last column
  void to_column_end(bool last);  // first or last row
  void plane(int by);
  /// "12,3", all dims or the last ones; false: no such element.
  bool go_to(std::string_view index);

  /// Row and column numbers of the window.
  std::string row_label(std::int64_t line) const;
  int label_width() const;
  int cell_width() const { return cell_; }
  /// "[3, :, :]  rows 0-20 of 4096, columns 0-5 of 64"
  std::string position() const;
  std::int64_t rows() const;
  std::int64_t columns() const;
  std::int64_t planes() const;
  bool is_wrapped() const { return shape_.size() < 2; }

 private:
  void settle();

  std::vector<std::int64_t> shape_;
  ValueWindow window_;
  int width_ = 80, height_ = 20;
  int cell_ = 12;
};

/// The window with its numbers; `other`: the same window of another tensor, whose elements that
/// differ are marked in this one.
Picture values_picture(const ValueGrid& grid, const ShowReport& shown, const ShowReport* other,
                       int width);

}  // namespace tessera::tools

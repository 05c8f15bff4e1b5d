#include "tools/browse/value_grid.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <tessera/base/text.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <numeric>

namespace tessera::tools {
namespace {

std::int64_t product(std::span<const std::int64_t> extents) {
  return std::accumulate(extents.begin(), extents.end(), std::int64_t{1}, std::multiplies<>());
}

/// The index of a plane among the dims before the last two.
std::vector<std::int64_t> plane_index(std::span<const std::int64_t> outer, std::int64_t plane) {
  std::vector<std::int64_t> index(outer.size());
  for (std::size_t d = outer.size(); d-- > 0;) {
    index[d] = plane % std::max<std::int64_t>(1, outer[d]);
    plane /= std::max<std::int64_t>(1, outer[d]);
  }
  return index;
}

}  // namespace

std::vector<SliceRange> slice_of(std::span<const std::int64_t> shape, const ValueWindow& window) {
  if (shape.empty()) return {};
  const auto range = [](std::int64_t begin, std::int64_t end) {
    return SliceRange{begin, end, false};
  };
  if (shape.size() == 1)
    return {range(window.row * window.columns, (window.row + window.rows) * window.columns)};
  std::vector<SliceRange> slice;
  for (const std::int64_t at : plane_index(shape.first(shape.size() - 2), window.plane))
    slice.push_back({at, std::nullopt, true});
  slice.push_back(range(window.row, window.row + window.rows));
  slice.push_back(range(window.column, window.column + window.columns));
  return slice;
}

void ValueGrid::set_shape(std::vector<std::int64_t> shape) {
  if (shape == shape_) return;
  shape_ = std::move(shape);
  window_ = {};
  settle();
}

void ValueGrid::set_room(int width, int height) {
  width_ = width;
  height_ = height;
  settle();
}

void ValueGrid::set_cell(int width) {
  cell_ = std::max(4, width);
  settle();
}

bool ValueGrid::is_empty() const { return product(shape_) == 0; }

std::int64_t ValueGrid::planes() const {
  return is_wrapped() ? 1 : product(std::span(shape_).first(shape_.size() - 2));
}
std::int64_t ValueGrid::columns() const {
  return is_wrapped() ? std::max<std::int64_t>(1, window_.columns) : shape_.back();
}
std::int64_t ValueGrid::rows() const {
  if (!is_wrapped()) return shape_[shape_.size() - 2];
  return (product(shape_) + columns() - 1) / columns();
}

int ValueGrid::label_width() const {
  const std::int64_t last = is_wrapped() ? product(shape_) : rows();
  return static_cast<int>(fmt::format("{}", std::max<std::int64_t>(0, last - 1)).size());
}

void ValueGrid::settle() {
  const std::int64_t fit = std::max(1, (width_ - label_width() - 1) / (cell_ + 1));
  if (is_wrapped()) {
    // The first element that is shown stays the first.
    const std::int64_t first = window_.row * std::max<std::int64_t>(1, window_.columns);
    window_.columns = std::clamp<std::int64_t>(product(shape_), 1, fit > 3 ? fit / 2 * 2 : fit);
    window_.row = first / window_.columns;
  } else {
    window_.columns = std::clamp<std::int64_t>(columns(), 1, fit);
    window_.column = std::clamp<std::int64_t>(
        window_.column, 0, std::max<std::int64_t>(0, columns() - window_.columns));
  }
  window_.rows = std::clamp<std::int64_t>(rows(), 1, std::max(1, height_ - 1));
  window_.row =
      std::clamp<std::int64_t>(window_.row, 0, std::max<std::int64_t>(0, rows() - window_.rows));
  window_.plane =
      std::clamp<std::int64_t>(window_.plane, 0, std::max<std::int64_t>(0, planes() - 1));
}

void ValueGrid::move(std::int64_t rows, std::int64_t columns) {
  window_.row += rows;
  if (!is_wrapped()) window_.column += columns;
  settle();
}

void ValueGrid::to_row_end(bool last) {
  if (is_wrapped()) return to_column_end(last);
  window_.column = last ? columns() : 0;
  settle();
}

void ValueGrid::to_column_end(bool last) {
  window_.row = last ? rows() : 0;
  settle();
}

void ValueGrid::plane(int by) {
  window_.plane += by;
  settle();
}

bool ValueGrid::go_to(std::string_view text) {
  std::vector<std::int64_t> index;
  for (const std::string_view part : split(text, ',')) {
    std::int64_t value = -1;
    const std::size_t begin = std::min(part.find_first_not_of(' '), part.size());
    const auto [end, error] =
        std::from_chars(part.data() + begin, part.data() + part.size(), value);
    if (error != std::errc() || end != part.data() + part.size() || value < 0) return false;
    index.push_back(value);
  }
  if (index.size() > shape_.size()) return false;
  const std::size_t from = shape_.size() - index.size();
  for (std::size_t d = 0; d < index.size(); ++d)
    if (index[d] >= shape_[from + d]) return false;
  if (is_wrapped()) {
    window_.row = index[0] / columns();
  } else if (index.size() == 1) {
    window_.row = index[0] < rows() ? index[0] : window_.row;
  } else {
    window_.row = index[index.size() - 2];
    window_.column = index.back();
    const auto outer = std::span(shape_).first(shape_.size() - 2);
    if (index.size() == shape_.size()) {
      window_.plane = 0;
      for (std::size_t d = 0; d < outer.size(); ++d)
        window_.plane = window_.plane * outer[d] + index[d];
    }
  }
  settle();
  return true;
}

std::string ValueGrid::row_label(std::int64_t line) const {
  const std::int64_t row = window_.row + line;
  return shape_.empty() ? "" : fmt::format("{}", is_wrapped() ? row * columns() : row);
}

std::string ValueGrid::position() const {
  if (shape_.empty()) return "one element";
  const auto range = [](std::int64_t begin, std::int64_t count, std::int64_t all) {
    return fmt::format("{}-{} of {}", begin, std::min(all, begin + count) - 1, all);
  };
  if (is_wrapped())
    return "elements " + range(window_.row * columns(), window_.rows * columns(), shape_[0]);
  std::string text;
  if (shape_.size() > 2)
    text = fmt::format(
        "[{}, :, :]  ",
        fmt::join(plane_index(std::span(shape_).first(shape_.size() - 2), window_.plane), ", "));
  return text + "rows " + range(window_.row, window_.rows, rows()) + ", columns " +
         range(window_.column, window_.columns, columns());
}

Picture values_picture(const ValueGrid& grid, const ShowReport& shown, const ShowReport* other,
                       int width) {
  Picture picture;
  const ValueWindow& window = grid.window();
  const int label = grid.label_width();
  int cell = grid.cell_width();
  for (const std::string& value : shown.values) cell = std::max(cell, display_width(value));
  PictureLine head{Span(std::string(static_cast<std::size_t>(label) + 1, ' '))};
  for (std::int64_t c = 0; c < window.columns; ++c) {
    const std::int64_t column = grid.is_wrapped() ? c : window.column + c;
    const std::string number = (grid.is_wrapped() ? "+" : "") + fmt::format("{}", column);
    head.emplace_back(pad_left(number, cell) + " ", Tint::kDim);
  }
  picture.push_back(fitted(std::move(head), width));
  const auto columns = static_cast<std::size_t>(window.columns);
  for (std::size_t at = 0; at < shown.values.size(); at += columns) {
    PictureLine line{
        Span(pad_left(grid.row_label(static_cast<std::int64_t>(at / columns)), label) + " ",
             Tint::kDim)};
    for (std::size_t i = at; i < std::min(at + columns, shown.values.size()); ++i) {
      const bool differs =
          other != nullptr && i < other->values.size() && other->values[i] != shown.values[i];
      const std::string text = printable(shown.values[i]);
      line.emplace_back(
          std::string(static_cast<std::size_t>(std::max(0, cell - display_width(text))), ' '));
      line.emplace_back(text, differs ? Tint::kYellow : Tint::kPlain, differs);
      line.emplace_back(" ");
    }
    picture.push_back(fitted(std::move(line), width));
  }
  return picture;
}

}  // namespace tessera::tools

#include "lib/format/nanotron/slices.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include <charconv>
#include <optional>

namespace tessera::nanotron {
namespace {

constexpr int kMostDims = 64;

/// Reads Python's tuples of numbers and None.
class Cursor {
 public:
  explicit Cursor(std::string_view text) : text_(text), rest_(text) {}

  bool take(char c) {
    while (rest_.starts_with(' ')) rest_.remove_prefix(1);
    if (!rest_.starts_with(c)) return false;
    rest_.remove_prefix(1);
    return true;
  }
  void expect(char c) {
    if (!take(c)) refuse();
  }
  bool at_end() {
    while (rest_.starts_with(' ')) rest_.remove_prefix(1);
    return rest_.empty();
  }
  std::int64_t number() {
    while (rest_.starts_with(' ')) rest_.remove_prefix(1);
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
    if (error != std::errc() || value < 0) refuse();
    rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
    return value;
  }
  /// nullopt: None.
  std::optional<std::int64_t> bound() {
    constexpr std::string_view kNone = "None";
    while (rest_.starts_with(' ')) rest_.remove_prefix(1);
    if (!rest_.starts_with(kNone)) return number();
    rest_.remove_prefix(kNone.size());
    return std::nullopt;
  }
  [[noreturn]] void refuse() const {
    fail(Code::kCorrupt, fmt::format("expected tuples of slices in its metadata, found \"{}\"",
                                     printable(text_.substr(0, 80))));
  }

 private:
  std::string_view text_, rest_;
};

/// One tuple of slices, a slice for each dim of `shape`.
Box parse_box(Cursor& cursor, const Shape& shape) {
  Box box = Box::whole(shape);
  cursor.expect('(');
  for (int d = 0; d < shape.rank(); ++d) {
    if (d > 0) cursor.expect(',');
    cursor.expect('(');
    const std::int64_t begin = cursor.bound().value_or(0);
    cursor.expect(',');
    const std::int64_t end = cursor.bound().value_or(shape[d]);
    cursor.expect(',');
    if (cursor.bound().value_or(1) != 1) fail(Code::kUnsupported, "slices with steps");
    cursor.expect(')');
    if (begin > end || end > shape[d])
      fail(Code::kCorrupt, fmt::format("a slice [{}, {}) of a dim of {}", begin, end, shape[d]));
    box.origin[static_cast<std::size_t>(d)] = begin;
    box.shape[d] = end - begin;
  }
  cursor.take(',');
  cursor.expect(')');
  return box;
}

}  // namespace

Shape parse_shape(std::string_view text) {
  Cursor cursor(text);
  std::vector<std::int64_t> extents;
  cursor.expect('(');
  while (!cursor.take(')')) {
    if (static_cast<int>(extents.size()) == kMostDims) cursor.refuse();
    extents.push_back(cursor.number());
    if (cursor.take(',')) continue;
    cursor.expect(')');
    break;
  }
  if (!cursor.at_end()) cursor.refuse();
  return Shape::checked(extents);
}

std::vector<SlicePair> parse_slices(std::string_view text, const Shape& local, const Shape& whole) {
  if (local.rank() != whole.rank())
    fail(Code::kCorrupt, fmt::format("a part of shape {} of a parameter of shape {}",
                                     local.to_string(), whole.to_string()));
  std::vector<SlicePair> pairs;
  Cursor cursor(text);
  do {
    SlicePair pair;
    pair.local = parse_box(cursor, local);
    cursor.expect('#');
    pair.whole = parse_box(cursor, whole);
    if (pair.local.shape != pair.whole.shape)
      fail(Code::kCorrupt, fmt::format("a part of shape {} in a place of shape {}",
                                       pair.local.shape.to_string(), pair.whole.shape.to_string()));
    pairs.push_back(std::move(pair));
  } while (cursor.take(';'));
  if (!cursor.at_end()) cursor.refuse();
  return pairs;
}

}  // namespace tessera::nanotron

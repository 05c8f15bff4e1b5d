#include "lib/ops/diff_elements.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/tensor/cast.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "lib/ops/element_blocks.h"

namespace tessera {
namespace {

/// Position of a value among those its type represents, so that neighbours differ by one; both
/// zeros at 0.
std::int64_t ordinal(DType dtype, double value) {
  const auto place = [](auto bits, int width) {
    const std::int64_t magnitude =
        static_cast<std::int64_t>(bits & ((std::uint64_t{1} << (width - 1)) - 1));
    return (bits >> (width - 1)) & 1 ? -magnitude : magnitude;
  };
  if (!is_floating(dtype)) return static_cast<std::int64_t>(value);
  if (dtype == DType::kFloat64) return place(std::bit_cast<std::uint64_t>(value), 64);
  std::uint64_t bits = 0;
  cast_elements(DType::kFloat64, ByteView(reinterpret_cast<const std::byte*>(&value), 8), dtype,
                MutableBytes(reinterpret_cast<std::byte*>(&bits),
                             static_cast<std::size_t>(element_bytes(dtype))));
  return place(bits, 8 * element_bytes(dtype));
}

std::string hex_bytes(ByteView bytes) {
  std::string text = "0x";
  for (auto it = bytes.rbegin(); it != bytes.rend(); ++it)
    text += fmt::format("{:02x}", std::to_integer<unsigned>(*it));
  return text;
}

}  // namespace

ElementDiff::ElementDiff(const DiffOptions& options, DiffSide a, DiffSide b)
    : options_(options), a_(a), b_(b) {
  out_.what = TensorDiff::What::kValues;
  out_.numel = a.spec.shape.numel();
  out_.a = a.spec.to_string();
  out_.b = b.spec.to_string();
}

/// Types without arithmetic are only ever equal or not, bit for bit.
bool ElementDiff::by_bytes() const {
  return !is_castable(a_.spec.dtype) || !is_castable(b_.spec.dtype);
}

void ElementDiff::note_first(std::int64_t index, std::string a, std::string b) {
  if (out_.count++ > 0) return;
  out_.first = index;
  out_.first_a = std::move(a);
  out_.first_b = std::move(b);
}

std::optional<TensorDiff> ElementDiff::compare() {
  if (by_bytes() && a_.spec.dtype != b_.spec.dtype)
    fail(Code::kUnsupported, fmt::format("{} and {} cannot be compared as numbers",
                                         torch_name(a_.spec.dtype), torch_name(b_.spec.dtype)));
  const std::int64_t block =
      is_sub_byte(a_.spec.dtype)
          ? std::max<std::int64_t>(out_.numel, 1)
          : block_elements(options_.transfer.memory_limit_bytes / 2, options_.transfer.threads, 2);
  for (std::int64_t at = 0; at < out_.numel; at += block) {
    if (options_.transfer.cancel) options_.transfer.cancel->check();
    const std::int64_t numel = std::min(block, out_.numel - at);
    const auto size = [&](DType dtype) {
      return static_cast<std::size_t>((numel * bits(dtype) + 7) / 8);
    };
    bytes_a_.resize(size(a_.spec.dtype));
    bytes_b_.resize(size(b_.spec.dtype));
    a_.reader.read(a_.tensor, at, at + numel, bytes_a_);
    b_.reader.read(b_.tensor, at, at + numel, bytes_b_);
    by_bytes() ? compare_bytes(at, numel) : compare_numbers(at, numel);
    if (options_.stop_at_first && out_.count) break;
  }
  if (out_.count == 0) return std::nullopt;
  finish();
  return out_;
}

void ElementDiff::compare_bytes(std::int64_t begin, std::int64_t numel) {
  if (bytes_a_ == bytes_b_) return;
  if (is_sub_byte(a_.spec.dtype)) {
    for (std::size_t i = 0; i < bytes_a_.size(); ++i)  // counted by byte: elements share them
      if (bytes_a_[i] != bytes_b_[i])
        note_first(static_cast<std::int64_t>(i) * 8 / bits(a_.spec.dtype),
                   hex_bytes({&bytes_a_[i], 1}), hex_bytes({&bytes_b_[i], 1}));
    return;
  }
  const auto width = static_cast<std::size_t>(element_bytes(a_.spec.dtype));
  for (std::int64_t i = 0; i < numel; ++i) {
    const auto *a = &bytes_a_[static_cast<std::size_t>(i) * width],
               *b = &bytes_b_[static_cast<std::size_t>(i) * width];
    if (std::memcmp(a, b, width) != 0)
      note_first(begin + i, hex_bytes({a, width}), hex_bytes({b, width}));
  }
}

void ElementDiff::load(const DiffSide& side, ByteView bytes, Bytes& cast,
                       std::vector<double>& values) const {
  const std::size_t count = bytes.size() / static_cast<std::size_t>(element_bytes(side.spec.dtype));
  values.resize(count);
  if (!options_.as) return to_double(side.spec.dtype, bytes, values);
  cast.resize(count * static_cast<std::size_t>(element_bytes(*options_.as)));
  cast_elements(side.spec.dtype, bytes, *options_.as, cast);
  to_double(*options_.as, cast, values);
}

bool ElementDiff::element_equal(double a, double b) const {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b) && options_.nan_equal;
  if (a == b) return true;
  if (std::isinf(a) || std::isinf(b)) return false;
  const double distance = std::abs(a - b);
  if (options_.abs && distance <= *options_.abs) return true;
  if (options_.rel && distance <= *options_.rel * std::max(std::abs(a), std::abs(b))) return true;
  if (!options_.ulp) return false;
  const DType dtype = options_.as.value_or(a_.spec.dtype);
  return std::abs(ordinal(dtype, a) - ordinal(dtype, b)) <= *options_.ulp;
}

void ElementDiff::compare_numbers(std::int64_t begin, std::int64_t numel) {
  const bool exact = !options_.abs && !options_.rel && !options_.ulp;
  const bool same_type = a_.spec.dtype == b_.spec.dtype && !options_.as;
  const bool same_bytes = same_type && bytes_a_ == bytes_b_;
  if (exact && same_bytes && out_.count == 0 && begin + numel == out_.numel)
    return;  // equal to the end: no number is needed
  load(a_, bytes_a_, cast_a_, values_a_);
  load(b_, bytes_b_, cast_b_, values_b_);
  const auto width = static_cast<std::size_t>(element_bytes(options_.as.value_or(a_.spec.dtype)));
  const ByteView raw_a = options_.as ? ByteView(cast_a_) : ByteView(bytes_a_),
                 raw_b = options_.as ? ByteView(cast_b_) : ByteView(bytes_b_);
  for (std::size_t i = 0; i < values_a_.size(); ++i) {
    const double a = values_a_[i], b = values_b_[i];
    measure(a, b);
    const bool equal =
        exact ? std::memcmp(&raw_a[i * width], &raw_b[i * width], width) == 0 : element_equal(a, b);
    if (!equal)
      note_first(begin + static_cast<std::int64_t>(i), fmt::format("{:.9g}", a),
                 fmt::format("{:.9g}", b));
  }
}

void ElementDiff::measure(double a, double b) {
  if (!std::isfinite(a) || !std::isfinite(b)) {
    const bool same = (std::isnan(a) && std::isnan(b)) || a == b;
    out_.nonfinite_mismatch += !same;
    return;
  }
  const double distance = std::abs(a - b), scale = std::max(std::abs(a), std::abs(b));
  out_.max_abs = std::max(out_.max_abs, distance);
  if (scale > 0) out_.max_rel = std::max(out_.max_rel, distance / scale);
  squares_a_ += a * a;
  squares_b_ += b * b;
  squares_diff_ += distance * distance;
  dot_ += a * b;
}

void ElementDiff::finish() {
  out_.l2 = std::sqrt(squares_diff_);
  out_.relative_l2 = squares_a_ > 0 ? std::sqrt(squares_diff_ / squares_a_) : 0;
  const double norms = std::sqrt(squares_a_) * std::sqrt(squares_b_);
  out_.cosine = norms > 0 ? dot_ / norms : squares_a_ == squares_b_ ? 1 : 0;
  std::int64_t rest = out_.first.value_or(0);
  const Shape& shape = a_.spec.shape;
  for (int d = 0; d < shape.rank(); ++d) {
    const std::int64_t inner = shape.inner_numel(d);
    out_.first_index.push_back(rest / inner);
    rest %= inner;
  }
}

}  // namespace tessera

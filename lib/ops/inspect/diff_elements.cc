#include "lib/ops/inspect/diff_elements.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/tensor/cast.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "lib/ops/inspect/element_blocks.h"

namespace tessera {
namespace {

constexpr std::int64_t kRunNumel = std::int64_t{1} << 20;
constexpr std::int64_t kMostRuns = 1024;  // of one tensor
/// Looked at in a row: stays in the CPU's cache.
constexpr std::int64_t kLookNumel = 128 * kStatStrip;
constexpr auto kStrip = static_cast<std::size_t>(kStatStrip);

/// Position of a value among those its type represents, so that neighbours differ by one; both
/// zeros at 0. `raw`: a floating element of the type.
std::int64_t ordinal(ByteView raw) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, raw.data(), std::min(raw.size(), sizeof bits));
  const std::uint64_t sign = std::uint64_t{1} << (8 * raw.size() - 1);
  const auto magnitude = static_cast<std::int64_t>(bits & (sign - 1));
  return bits & sign ? -magnitude : magnitude;
}

std::string hex_bytes(ByteView bytes) {
  std::string text = "0x";
  for (auto it = bytes.rbegin(); it != bytes.rend(); ++it)
    text += fmt::format("{:02x}", std::to_integer<unsigned>(*it));
  return text;
}

/// How many elements of `width` bytes are not the same.
std::int64_t count_different(ByteView a, ByteView b, std::size_t width) {
  const auto count = [&](auto zero) {
    using Word = decltype(zero);
    std::int64_t different = 0;
    for (std::size_t at = 0; at + sizeof(Word) <= a.size(); at += sizeof(Word)) {
      Word x, y;
      std::memcpy(&x, a.data() + at, sizeof x);
      std::memcpy(&y, b.data() + at, sizeof y);
      different += x != y;
    }
    return different;
  };
  switch (width) {
    case 1:
      return count(std::uint8_t{});
    case 2:
      return count(std::uint16_t{});
    case 4:
      return count(std::uint32_t{});
    case 8:
      return count(std::uint64_t{});
    default:
      break;
  }
  std::int64_t different = 0;
  for (std::size_t at = 0; at < a.size(); at += width)
    different += std::memcmp(a.data() + at, b.data() + at, width) != 0;
  return different;
}

bool is_same(ByteView a, ByteView b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

}  // namespace

void DiffRun::add(const PairSums& sums) {
  max_abs = std::max(max_abs, sums.max_abs);
  max_rel = std::max(max_rel, sums.max_rel);
  squares_a.add(sums.squares_a);
  squares_b.add(sums.squares_b);
  squares_diff.add(sums.squares_diff);
  dot.add(sums.dot);
}

void DiffRun::join(const DiffRun& next) {
  if (count == 0 && next.count > 0) {
    first = next.first;
    first_a = next.first_a;
    first_b = next.first_b;
  }
  count += next.count;
  max_abs = std::max(max_abs, next.max_abs);
  max_rel = std::max(max_rel, next.max_rel);
  nonfinite_mismatch += next.nonfinite_mismatch;
  squares_a.add(next.squares_a);
  squares_b.add(next.squares_b);
  squares_diff.add(next.squares_diff);
  dot.add(next.dot);
}

ElementDiff::ElementDiff(const DiffOptions& options, DiffSide a, DiffSide b)
    : options_(options),
      a_(a),
      b_(b),
      compared_(options.as.value_or(a.spec.dtype)),
      width_(static_cast<std::size_t>(bits(by_bytes() ? a.spec.dtype : compared_) / 8)),
      numel_(a.spec.shape.numel()),
      exact_(!options.abs && !options.rel && !options.ulp),
      tolerance_{options.abs.value_or(-1), options.rel.value_or(-1)} {
  if (by_bytes() && a.spec.dtype != b.spec.dtype)
    fail(Code::kUnsupported, fmt::format("{} and {} cannot be compared as numbers",
                                         torch_name(a.spec.dtype), torch_name(b.spec.dtype)));
}

/// Types without arithmetic are only ever equal or not, bit for bit.
bool ElementDiff::by_bytes() const {
  return !is_castable(a_.spec.dtype) || !is_castable(b_.spec.dtype);
}

std::int64_t ElementDiff::run_numel() const {
  if (is_sub_byte(a_.spec.dtype)) return std::max<std::int64_t>(numel_, 1);
  const auto multiple = [](std::int64_t least, std::int64_t of) {
    return (least + of - 1) / of * of;
  };
  const std::int64_t least = std::max(kRunNumel, multiple(numel_ / kMostRuns, kRunNumel));
  // Whole items, so that no two threads decode one.
  const std::int64_t coded =
      std::max(a_.reader.coded_run(a_.tensor), b_.reader.coded_run(b_.tensor));
  return coded > 0 ? multiple(least, coded) : least;
}

DiffRun ElementDiff::compare(std::int64_t begin, std::int64_t end, DiffScratch& scratch) const {
  DiffRun run;
  TensorReader::Reading from_a(a_.reader, {&a_.tensor, 1});
  TensorReader::Reading from_b(b_.reader, {&b_.tensor, 1}, &from_a);
  const std::int64_t block =
      is_sub_byte(a_.spec.dtype)
          ? std::max<std::int64_t>(end - begin, 1)
          : block_elements(options_.transfer.memory_limit_bytes / 2, options_.transfer.threads, 2) /
                kStatStrip * kStatStrip;
  for (std::int64_t at = begin; at < end; at += block) {
    if (options_.transfer.cancel) options_.transfer.cancel->check();
    const std::int64_t stop = std::min(end, at + block);
    const auto read = [&](const DiffSide& side, TensorReader::Reading& from, AlignedBuffer& into) {
      const auto size = static_cast<std::size_t>(((stop - at) * bits(side.spec.dtype) + 7) / 8);
      into.reserve(size);
      from.read(side.tensor, at, stop, {into.data(), size});
      return ByteView(into.data(), size);
    };
    const ByteView a = read(a_, from_a, scratch.a.bytes), b = read(b_, from_b, scratch.b.bytes);
    if (by_bytes())
      compare_bytes(a, b, at, run);
    else
      is_float_exact(compared_) ? compare_numbers<float>(a, b, at, scratch, run)
                                : compare_numbers<double>(a, b, at, scratch, run);
  }
  return run;
}

void ElementDiff::compare_bytes(ByteView a, ByteView b, std::int64_t begin, DiffRun& run) const {
  if (is_same(a, b)) return;
  // Of types whose elements share bytes, these are counted.
  const std::size_t width = std::max<std::size_t>(width_, 1);
  if (run.count == 0) {
    std::size_t at = 0;
    while (is_same(a.subspan(at, width), b.subspan(at, width))) at += width;
    run.first = begin + static_cast<std::int64_t>(at) * 8 / bits(a_.spec.dtype);
    run.first_a = hex_bytes(a.subspan(at, width));
    run.first_b = hex_bytes(b.subspan(at, width));
  }
  run.count += count_different(a, b, width);
}

template <class Real>
ElementDiff::Values<Real> ElementDiff::load(const DiffSide& side, ByteView bytes,
                                            DiffScratch::Side& scratch) const {
  if (options_.as) {
    scratch.cast.resize(bytes.size() / static_cast<std::size_t>(element_bytes(side.spec.dtype)) *
                        width_);
    cast_elements(side.spec.dtype, bytes, *options_.as, scratch.cast);
    bytes = scratch.cast;
  }
  const std::size_t count = bytes.size() / width_;
  if constexpr (std::is_same_v<Real, double>) {
    scratch.doubles.resize(count);
    to_double(compared_, bytes, scratch.doubles);
    return {bytes, scratch.doubles};
  } else {
    return {bytes, floats_of(compared_, bytes, scratch.floats)};
  }
}

template <class Real>
void ElementDiff::compare_numbers(ByteView a, ByteView b, std::int64_t begin, DiffScratch& scratch,
                                  DiffRun& run) const {
  const auto width_a = static_cast<std::size_t>(element_bytes(a_.spec.dtype)),
             width_b = static_cast<std::size_t>(element_bytes(b_.spec.dtype));
  const std::size_t count = a.size() / width_a;
  constexpr auto kLook = static_cast<std::size_t>(kLookNumel);
  for (std::size_t look = 0; look < count; look += kLook) {
    const std::size_t looked = std::min(kLook, count - look);
    const auto of_a = load<Real>(a_, a.subspan(look * width_a, looked * width_a), scratch.a);
    const auto of_b = load<Real>(b_, b.subspan(look * width_b, looked * width_b), scratch.b);
    for (std::size_t at = 0; at < looked; at += kStrip) {
      const std::size_t n = std::min(kStrip, looked - at);
      const auto strip = [&](const Values<Real>& of) {
        return Values<Real>{of.raw.subspan(at * width_, n * width_), of.numbers.subspan(at, n)};
      };
      compare_strip(strip(of_a), strip(of_b), begin + static_cast<std::int64_t>(look + at), run);
    }
  }
}

template <class Real>
void ElementDiff::compare_strip(const Values<Real>& a, const Values<Real>& b, std::int64_t begin,
                                DiffRun& run) const {
  const bool same = is_same(a.raw, b.raw);
  PairSums sums;
  if (same)
    sums.squares_a = sums.squares_b = sums.dot = square_sum(a.numbers);
  else
    sums = pair_sums(a.numbers, b.numbers, tolerance_);
  // What is not finite shows in a sum of squares.
  const bool finite = std::isfinite(sums.squares_a) && std::isfinite(sums.squares_b);
  if (!finite) {
    std::array<Real, kStrip> finite_a, finite_b;
    std::size_t kept = 0;
    for (std::size_t i = 0; i < a.numbers.size(); ++i) {
      const Real x = a.numbers[i], y = b.numbers[i];
      finite_a[kept] = x, finite_b[kept] = y;  // overwritten where one is not finite
      if (std::isfinite(x) && std::isfinite(y))
        ++kept;
      else
        run.nonfinite_mismatch += !((std::isnan(x) && std::isnan(y)) || x == y);
    }
    sums = pair_sums(std::span<const Real>(finite_a.data(), kept),
                     std::span<const Real>(finite_b.data(), kept), tolerance_);
  }
  run.add(sums);
  std::int64_t different = sums.beyond;
  if (exact_) {
    different = same ? 0 : count_different(a.raw, b.raw, width_);
  } else if (!finite || options_.ulp) {
    different = 0;
    for (std::size_t i = 0; i < a.numbers.size(); ++i) different += !element_equal(a, b, i);
  }
  if (different > 0 && run.count == 0) {
    std::size_t i = 0;
    while (element_equal(a, b, i)) ++i;
    run.first = begin + static_cast<std::int64_t>(i);
    run.first_a = fmt::format("{:.9g}", double{a.numbers[i]});
    run.first_b = fmt::format("{:.9g}", double{b.numbers[i]});
  }
  run.count += different;
}

template <class Real>
bool ElementDiff::element_equal(const Values<Real>& of_a, const Values<Real>& of_b,
                                std::size_t i) const {
  const ByteView raw_a = of_a.raw.subspan(i * width_, width_),
                 raw_b = of_b.raw.subspan(i * width_, width_);
  if (exact_) return is_same(raw_a, raw_b);
  const double a = of_a.numbers[i], b = of_b.numbers[i];
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b) && options_.nan_equal;
  if (a == b) return true;
  if (std::isinf(a) || std::isinf(b)) return false;
  const double distance = std::abs(a - b);
  if (options_.abs && distance <= *options_.abs) return true;
  if (options_.rel && distance <= *options_.rel * std::max(std::abs(a), std::abs(b))) return true;
  if (!options_.ulp) return false;
  const auto place = [&](double value, ByteView raw) {
    return is_floating(compared_) ? ordinal(raw) : static_cast<std::int64_t>(value);
  };
  return std::abs(place(a, raw_a) - place(b, raw_b)) <= *options_.ulp;
}

TensorDiff ElementDiff::report(DiffRun whole) const {
  TensorDiff out;
  out.what = TensorDiff::What::kValues;
  out.a = a_.spec.to_string();
  out.b = b_.spec.to_string();
  out.numel = numel_;
  out.count = whole.count;
  out.first = whole.first;
  out.first_a = std::move(whole.first_a);
  out.first_b = std::move(whole.first_b);
  out.max_abs = whole.max_abs;
  out.max_rel = whole.max_rel;
  out.nonfinite_mismatch = whole.nonfinite_mismatch;
  const double squares_a = whole.squares_a.value(), squares_b = whole.squares_b.value(),
               squares_diff = whole.squares_diff.value();
  out.l2 = std::sqrt(squares_diff);
  out.relative_l2 = squares_a > 0 ? std::sqrt(squares_diff / squares_a) : 0;
  const double norms = std::sqrt(squares_a) * std::sqrt(squares_b);
  out.cosine = norms > 0 ? whole.dot.value() / norms : squares_a == squares_b ? 1 : 0;
  std::int64_t rest = whole.first;
  const Shape& shape = a_.spec.shape;
  for (int d = 0; d < shape.rank(); ++d) {
    const std::int64_t inner = shape.inner_numel(d);
    out.first_index.push_back(rest / inner);
    rest %= inner;
  }
  return out;
}

}  // namespace tessera

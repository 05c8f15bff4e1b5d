#include "lib/ops/inspect/stat_pass.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <type_traits>

#include "lib/base/cpu.h"
#include "lib/ops/inspect/stat_wide.h"

namespace tessera {
namespace {

constexpr double kBf16Over =
    3.3961775292304957e38;           // halfway to the next step: rounds to Inf from here
constexpr double kFp16Over = 65520;  // likewise: 65504 is the largest finite float16
constexpr double kFp16Under =
    2.9802322387695312e-8;  // half the smallest subnormal: rounds to zero up to here

/// Smallest normal number of a floating type; 0 where subnormals do not arise.
double smallest_normal(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
      return 2.2250738585072014e-308;
    case DType::kFloat32:
    case DType::kBFloat16:
      return 1.1754943508222875e-38;
    case DType::kFloat16:
      return 6.103515625e-05;
    case DType::kFloat8E4M3Fn:
      return 0.015625;
    case DType::kFloat8E4M3FnUz:
      return 0.0078125;
    case DType::kFloat8E5M2:
      return 6.103515625e-05;
    case DType::kFloat8E5M2FnUz:
      return 3.0517578125e-05;
    default:
      return 0;
  }
}

// Vectors by the compilers' extension, of the size that every 64-bit machine has.
constexpr std::size_t kVectorBytes = 16;
template <class Real>
using Vector __attribute__((vector_size(kVectorBytes))) = Real;
template <class Real>
using Integer = std::conditional_t<sizeof(Real) == 4, std::int32_t, std::int64_t>;
template <class Real>
constexpr std::size_t kLanes = kVectorBytes / sizeof(Real);
using Doubles = Vector<double>;

/// Calls take(vector) for all values; the last one is filled up with `filler`.
template <class Real, class Take>
[[gnu::always_inline]] inline void in_vectors(std::span<const Real> values, Real filler,
                                              Take&& take) {
  Vector<Real> x;
  std::size_t i = 0;
  for (; i + kLanes<Real> <= values.size(); i += kLanes<Real>) {
    std::memcpy(&x, values.data() + i, sizeof x);
    take(x);
  }
  if (i == values.size()) return;
  x = Vector<Real>{} + filler;
  std::memcpy(&x, values.data() + i, (values.size() - i) * sizeof(Real));
  take(x);
}

/// How many fillers in_vectors adds.
template <class Real>
std::int64_t fillers(std::span<const Real> values) {
  return static_cast<std::int64_t>((kLanes<Real> - values.size() % kLanes<Real>) % kLanes<Real>);
}

template <class V, class Join>
auto joined(const V& vector, Join&& join) {
  auto result = vector[0];
  for (std::size_t l = 1; l < sizeof(V) / sizeof(result); ++l) result = join(result, vector[l]);
  return result;
}

constexpr auto kSmaller = [](auto a, auto b) { return b < a ? b : a; };
constexpr auto kLarger = [](auto a, auto b) { return b > a ? b : a; };
constexpr std::plus<> kSum;

template <class Real>
Vector<Real> modulus_of(const Vector<Real>& x) {
  using Bits = Vector<Integer<Real>>;
  constexpr auto kAllButSign = std::numeric_limits<Integer<Real>>::max();
  return reinterpret_cast<Vector<Real>>(reinterpret_cast<Bits>(x) & (Bits{} + kAllButSign));
}

/// x - x is zero, or NaN where x is not finite.
template <class Real>
bool all_finite(std::span<const Real> values) {
  Vector<Real> nothing = {};
  in_vectors(values, Real{0}, [&](const Vector<Real>& x) { nothing += x - x; });
  return joined(nothing, kSum) == 0;
}

template <class Real>
struct Extremes {
  Real low, high;
  Real smallest;  // modulus that is not zero; infinite where all are zero
  std::int64_t zeros;
};

/// `values`: finite, at least one.
template <class Real>
Extremes<Real> extremes_of(std::span<const Real> values) {
  using Bits = Vector<Integer<Real>>;
  const Vector<Real> infinite = Vector<Real>{} + std::numeric_limits<Real>::infinity();
  const Bits infinite_bits = reinterpret_cast<Bits>(infinite);
  Vector<Real> low = infinite, high = -infinite, smallest = infinite;
  Bits zeros = {};
  in_vectors(values, values[0], [&](const Vector<Real>& x) {
    const Vector<Real> modulus = modulus_of<Real>(x);
    const Bits zero = modulus == 0;
    zeros -= zero;
    // Zero's bits are none: with those of infinity in, it is never the smallest.
    const auto apart =
        reinterpret_cast<Vector<Real>>(reinterpret_cast<Bits>(modulus) | (zero & infinite_bits));
    low = x < low ? x : low;
    high = x > high ? x : high;
    smallest = apart < smallest ? apart : smallest;
  });
  return {joined(low, kSmaller), joined(high, kLarger), joined(smallest, kSmaller),
          joined(zeros, kSum) - (values[0] == 0 ? fillers(values) : 0)};
}

/// Counts finite values below `normal`, and those that bfloat16 and float16 cannot hold.
template <class Real>
wide::Outside outside_of(std::span<const Real> values, Real normal) {
  using Bits = Vector<Integer<Real>>;
  constexpr Real kTooLarge = kFp16Over, kTooSmall = kFp16Under, kBfTooLarge = kBf16Over;
  Bits subnormal = {}, bf16 = {}, fp16 = {};
  in_vectors(values, Real{0}, [&](const Vector<Real>& x) {
    const Vector<Real> modulus = modulus_of<Real>(x);
    const Bits some = modulus > 0;
    subnormal -= some & (modulus < normal);
    bf16 -= modulus >= kBfTooLarge;
    fp16 -= (modulus >= kTooLarge) | (some & (modulus <= kTooSmall));
  });
  return {joined(subnormal, kSum), joined(bf16, kSum), joined(fp16, kSum)};
}

struct LaneSums {
  Doubles shifted = {}, shifted_squares = {}, moduli = {}, squares = {};

  [[gnu::always_inline]] void add(const Doubles& x, double shift) {
    const Doubles y = x - shift;
    shifted += y;
    shifted_squares += y * y;
    moduli += modulus_of<double>(x);
    squares += x * x;
  }
};

template <class Real>
wide::Sums sums_of(std::span<const Real> values, double shift) {
  LaneSums sums, odd;  // two of them: an addition need not wait for the one before
  const std::size_t whole = values.size() - values.size() % kLanes<Real>;
  in_vectors(values.first(whole), Real{0}, [&](const Vector<Real>& x) {
    if constexpr (sizeof(Real) == sizeof(double)) {
      sums.add(x, shift);
    } else {
      sums.add(__builtin_convertvector(__builtin_shufflevector(x, x, 0, 1), Doubles), shift);
      odd.add(__builtin_convertvector(__builtin_shufflevector(x, x, 2, 3), Doubles), shift);
    }
  });
  for (const double x : values.subspan(whole)) {
    const double y = x - shift;
    sums.shifted[0] += y;
    sums.shifted_squares[0] += y * y;
    sums.moduli[0] += std::abs(x);
    sums.squares[0] += x * x;
  }
  sums.shifted += odd.shifted;
  sums.shifted_squares += odd.shifted_squares;
  sums.moduli += odd.moduli;
  sums.squares += odd.squares;
  return {joined(sums.shifted, kSum), joined(sums.shifted_squares, kSum), joined(sums.moduli, kSum),
          joined(sums.squares, kSum)};
}

/// Calls by_wide(values) where the values are floats and the CPU has wide vectors, else by_any().
template <class Real, class Wide, class Any>
auto by_width(std::span<const Real> values, Wide&& by_wide, Any&& by_any) {
  if constexpr (wide::kBuilt && std::is_same_v<Real, float>) {
    if (has_wide_vectors()) return by_wide(values);
  }
  return by_any();
}

}  // namespace

void StatPass::add_special(double x, std::int64_t index) {
  if (std::isnan(x)) {
    if (nan_++ == 0) first_nan_ = index;
    return;
  }
  ++(x > 0 ? pos_inf_ : neg_inf_);
  if (first_inf_ < 0) first_inf_ = index;
}

double StatPass::largest_modulus() const { return std::max(std::abs(min_), std::abs(max_)); }

template <class Real>
void StatPass::add(std::span<const Real> values, std::int64_t first_element) {
  if (row_norms_) add_rows(values, first_element);
  count_ += static_cast<std::int64_t>(values.size());
  constexpr auto kStrip = static_cast<std::size_t>(kStatStrip);
  for (std::size_t at = 0; at < values.size(); at += kStrip) {
    add_strip(values.subspan(at, std::min(kStrip, values.size() - at)),
              first_element + static_cast<std::int64_t>(at));
  }
}

template <class Real>
void StatPass::add_strip(std::span<const Real> values, std::int64_t first_element) {
  const bool finite_only = by_width(
      values, [](auto floats) { return wide::all_finite(floats); },
      [&] { return all_finite(values); });
  if (finite_only) return add_finite(values);
  std::array<Real, static_cast<std::size_t>(kStatStrip)> finite;
  std::size_t kept = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    finite[kept] = values[i];  // overwritten where it is not finite
    if (std::isfinite(values[i]))
      ++kept;
    else
      add_special(values[i], first_element + static_cast<std::int64_t>(i));
  }
  add_finite(std::span<const Real>(finite.data(), kept));
}

template <class Real>
void StatPass::add_finite(std::span<const Real> values) {
  if (values.empty()) return;
  if (finite_ == 0) min_ = max_ = shift_ = values[0];
  finite_ += static_cast<std::int64_t>(values.size());
  const Extremes<Real> extremes = by_width(
      values,
      [&](auto floats) -> Extremes<Real> {
        const wide::Extremes found = wide::extremes_of(floats);
        if (!found.is_exact) return extremes_of(values);
        return {found.low, found.high, found.smallest, found.zeros};
      },
      [&] { return extremes_of(values); });
  min_ = std::min(min_, double{extremes.low});
  max_ = std::max(max_, double{extremes.high});
  zeros_ += extremes.zeros;
  const double smallest = extremes.smallest;  // infinite where all are zero
  if (std::isfinite(smallest) && (smallest_modulus_ == 0 || smallest < smallest_modulus_))
    smallest_modulus_ = smallest;
  const double largest = std::max(std::abs(double{extremes.low}), std::abs(double{extremes.high}));
  const double normal = smallest_normal(dtype_);
  if (smallest < normal || smallest <= kFp16Under || largest >= kFp16Over) {
    const wide::Outside outside = by_width(
        values,
        [&](auto floats) {
          return wide::outside_of(floats,
                                  {static_cast<float>(normal), static_cast<float>(kBf16Over),
                                   static_cast<float>(kFp16Over), static_cast<float>(kFp16Under)});
        },
        [&] { return outside_of(values, static_cast<Real>(normal)); });
    subnormal_ += outside.subnormal;
    outside_bf16_ += outside.bf16;
    outside_fp16_ += outside.fp16;
  }
  const wide::Sums sums = by_width(
      values, [&](auto floats) { return wide::sums_of(floats, shift_); },
      [&] { return sums_of(values, shift_); });
  shifted_.add(sums.shifted);
  shifted_squares_.add(sums.shifted_squares);
  l1_.add(sums.moduli);
  squares_.add(sums.squares);
}

template <class Real>
void StatPass::add_rows(std::span<const Real> values, std::int64_t first_element) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double x = values[i];
    const auto row =
        static_cast<std::size_t>((first_element + static_cast<std::int64_t>(i)) / row_numel_);
    if (row >= rows_.size()) rows_.resize(row + 1);
    if (std::isfinite(x)) rows_[row].add(x * x);
  }
}

template void StatPass::add(std::span<const float>, std::int64_t);
template void StatPass::add(std::span<const double>, std::int64_t);

void StatPass::finish(TensorStat& stat) const {
  stat.count = count_;
  stat.finite = finite_;
  stat.nan = nan_;
  stat.pos_inf = pos_inf_;
  stat.neg_inf = neg_inf_;
  stat.zeros = zeros_;
  stat.subnormal = subnormal_;
  stat.outside_bf16 = outside_bf16_;
  stat.outside_fp16 = outside_fp16_;
  if (first_nan_ >= 0) stat.first_nan = first_nan_;
  if (first_inf_ >= 0) stat.first_inf = first_inf_;
  for (const CompensatedSum& row : rows_) stat.row_norms.push_back(std::sqrt(row.value()));
  if (finite_ == 0) return;
  const auto n = static_cast<double>(finite_);
  const double mean_shift = shifted_.value() / n;
  stat.min = min_;
  stat.max = max_;
  stat.abs_max = largest_modulus();
  stat.mean = shift_ + mean_shift;
  stat.std = std::sqrt(std::max(0.0, shifted_squares_.value() / n - mean_shift * mean_shift));
  stat.l1 = l1_.value();
  stat.l2 = std::sqrt(squares_.value());
  stat.constant = min_ == max_ && count_ > 1 && finite_ == count_;
  stat.all_zero = zeros_ == count_;
}

BinCounter::BinCounter(double low, double high, std::size_t bins, bool logarithmic)
    : low_(low),
      scale_(high > low ? static_cast<double>(bins) / (high - low) : 0),
      bins_(bins),
      logarithmic_(logarithmic),
      counts_(bins * kTables) {}

template <class Real>
void BinCounter::add(std::span<const Real> values) {
  const auto last = static_cast<std::int64_t>(bins_) - 1;
  for (std::size_t i = 0; i < values.size(); ++i) {
    double x = values[i];
    if (!std::isfinite(x)) continue;
    if (logarithmic_) {
      if (x == 0) {
        ++zeros_;
        continue;
      }
      x = std::log10(std::abs(x));
    }
    const auto bin =
        std::clamp<std::int64_t>(static_cast<std::int64_t>((x - low_) * scale_), 0, last);
    ++counts_[i % kTables * bins_ + static_cast<std::size_t>(bin)];
  }
}

template void BinCounter::add(std::span<const float>);
template void BinCounter::add(std::span<const double>);

std::vector<std::int64_t> BinCounter::counts() const {
  std::vector<std::int64_t> joined(bins_);
  for (std::size_t i = 0; i < counts_.size(); ++i) joined[i % bins_] += counts_[i];
  return joined;
}

}  // namespace tessera

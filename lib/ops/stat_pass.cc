#include "lib/ops/stat_pass.h"

#include <algorithm>
#include <cmath>

namespace tessera {
namespace {

constexpr double kBf16Max = 3.3895313892515355e38;  // largest finite bfloat16
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

}  // namespace

void StatPass::add_special(double x, std::int64_t index) {
  if (std::isnan(x)) {
    if (nan_++ == 0) first_nan_ = index;
    return;
  }
  ++(x > 0 ? pos_inf_ : neg_inf_);
  if (first_inf_ < 0) first_inf_ = index;
}

void StatPass::add(std::span<const double> values, std::int64_t first_element) {
  static_assert(kBf16Max < kBf16Over);
  const double normal = smallest_normal(dtype_);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double x = values[i];
    const std::int64_t index = first_element + static_cast<std::int64_t>(i);
    if (row_norms_) {
      const auto row = static_cast<std::size_t>(index / row_numel_);
      if (row >= rows_.size()) rows_.resize(row + 1);
      if (std::isfinite(x)) rows_[row].add(x * x);
    }
    ++count_;
    if (!std::isfinite(x)) {
      add_special(x, index);
      continue;
    }
    const double modulus = std::abs(x);
    if (finite_++ == 0) {
      min_ = max_ = shift_ = x;
    } else {
      constant_ = constant_ && x == shift_;
      min_ = std::min(min_, x);
      max_ = std::max(max_, x);
    }
    abs_max_ = std::max(abs_max_, modulus);
    if (modulus == 0) {
      ++zeros_;
    } else {
      if (modulus < normal) ++subnormal_;
      if (smallest_modulus_ == 0 || modulus < smallest_modulus_) smallest_modulus_ = modulus;
      if (modulus >= kBf16Over) ++outside_bf16_;
      if (modulus >= kFp16Over || modulus <= kFp16Under) ++outside_fp16_;
    }
    const double shifted = x - shift_;
    shifted_.add(shifted);
    shifted_squares_.add(shifted * shifted);
    l1_.add(modulus);
    squares_.add(x * x);
  }
}

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
  stat.abs_max = abs_max_;
  stat.mean = shift_ + mean_shift;
  stat.std = std::sqrt(std::max(0.0, shifted_squares_.value() / n - mean_shift * mean_shift));
  stat.l1 = l1_.value();
  stat.l2 = std::sqrt(squares_.value());
  stat.constant = constant_ && count_ > 1 && finite_ == count_;
  stat.all_zero = zeros_ == count_;
}

BinCounter::BinCounter(double low, double high, std::size_t bins, bool logarithmic)
    : low_(low),
      scale_(high > low ? static_cast<double>(bins) / (high - low) : 0),
      logarithmic_(logarithmic),
      counts_(bins) {}

void BinCounter::add(std::span<const double> values) {
  for (double x : values) {
    if (!std::isfinite(x)) continue;
    if (logarithmic_) {
      if (x == 0) {
        ++zeros_;
        continue;
      }
      x = std::log10(std::abs(x));
    }
    const auto bin = static_cast<std::int64_t>((x - low_) * scale_);
    ++counts_[static_cast<std::size_t>(
        std::clamp<std::int64_t>(bin, 0, static_cast<std::int64_t>(counts_.size()) - 1))];
  }
}

double sorted_quantile(std::span<const double> sorted, double q) {
  const double position = q * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(position);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (sorted[above] - sorted[below]) * (position - static_cast<double>(below));
}

}  // namespace tessera

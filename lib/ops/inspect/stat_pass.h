#pragma once
// The accumulators of `stat`: one tensor, fed block by block in element order. Blocks are cut into
// strips of kStatStrip elements that are summed in lanes; a strip's sums join by compensated
// addition, so the error depends on neither the element count nor, as long as blocks begin at
// multiples of a strip, the size of the blocks.
#include <tessera/base/bytes.h>
#include <tessera/ops/stat.h>

#include <cstdint>
#include <span>
#include <vector>

namespace tessera {

inline constexpr std::int64_t kStatStrip = 256;

/// Neumaier's compensated sum: error independent of the count for our purposes.
class CompensatedSum {
 public:
  void add(double x) {
    const double t = sum_ + x;
    correction_ += (sum_ < 0 ? -sum_ : sum_) >= (x < 0 ? -x : x) ? (sum_ - t) + x : (x - t) + sum_;
    sum_ = t;
  }
  void add(const CompensatedSum& other) {
    add(other.sum_);
    correction_ += other.correction_;
  }
  double value() const { return sum_ + correction_; }

 private:
  double sum_ = 0;
  double correction_ = 0;
};

/// Counts, extremes and sums. Deviations need the mean or, as here, sums shifted by the first
/// finite element, which keeps the cancellation of a sum of squares harmless.
class StatPass {
 public:
  StatPass(DType dtype, std::int64_t first_row_numel, bool row_norms)
      : dtype_(dtype), row_numel_(first_row_numel), row_norms_(row_norms) {}

  /// `Real` is float or double.
  template <class Real>
  void add(std::span<const Real> values, std::int64_t first_element);
  /// Fills counts, extremes, mean, std and norms.
  void finish(TensorStat& stat) const;
  double low() const { return min_; }
  double high() const { return max_; }
  std::int64_t finite() const { return finite_; }
  double smallest_modulus() const { return smallest_modulus_; }
  double largest_modulus() const;

 private:
  void add_special(double x, std::int64_t index);
  template <class Real>
  void add_strip(std::span<const Real> values, std::int64_t first_element);
  template <class Real>
  void add_finite(std::span<const Real> values);
  template <class Real>
  void add_rows(std::span<const Real> values, std::int64_t first_element);

  DType dtype_;
  std::int64_t row_numel_;
  bool row_norms_;
  std::int64_t count_ = 0, finite_ = 0, nan_ = 0, pos_inf_ = 0, neg_inf_ = 0, zeros_ = 0,
               subnormal_ = 0, outside_bf16_ = 0, outside_fp16_ = 0;
  std::int64_t first_nan_ = -1, first_inf_ = -1;
  double min_ = 0, max_ = 0, smallest_modulus_ = 0, shift_ = 0;  // smallest of the non-zero ones
  CompensatedSum shifted_, shifted_squares_, l1_, squares_;
  std::vector<CompensatedSum> rows_;
};

/// Counts of finite values in equal bins.
class BinCounter {
 public:
  BinCounter(double low, double high, std::size_t bins, bool logarithmic);
  template <class Real>
  void add(std::span<const Real> values);
  std::vector<std::int64_t> counts() const;
  std::int64_t zeros() const { return zeros_; }

 private:
  /// Values in a row often fall into one bin; counted in one place each would wait for the last.
  static constexpr std::size_t kTables = 4;

  double low_, scale_;
  std::size_t bins_;
  bool logarithmic_;
  std::int64_t zeros_ = 0;
  std::vector<std::int64_t> counts_;  // [table][bin]
};

}  // namespace tessera

#pragma once
// What `diff` adds up over pairs of finite values: in lanes of four doubles, with wide vectors
// where the CPU has them. Results are bit for bit the same with and without.
#include <cstdint>
#include <span>

namespace tessera {

struct PairSums {
  double max_abs = 0;  // of a - b
  double max_rel = 0;  // of |a - b| / max(|a|, |b|)
  double squares_a = 0, squares_b = 0, squares_diff = 0, dot = 0;
  std::int64_t beyond = 0;  // pairs that no tolerance makes equal
};

/// A pair is equal when |a - b| <= abs, or |a - b| <= rel * max(|a|, |b|), or a == b. Negative: not
/// asked for.
struct Tolerance {
  double abs = -1;
  double rel = -1;
};

/// `a` and `b` have one size. `Real` is float or double.
template <class Real>
PairSums pair_sums(std::span<const Real> a, std::span<const Real> b, const Tolerance& tolerance);
template <class Real>
double square_sum(std::span<const Real> values);

}  // namespace tessera

#include "lib/ops/inspect/diff_sums.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>

#include "lib/base/cpu.h"

namespace tessera {
namespace {

constexpr std::size_t kLanes = 4;
using Doubles = double __attribute__((vector_size(kLanes * sizeof(double))));
using Longs = std::int64_t __attribute__((vector_size(kLanes * sizeof(std::int64_t))));
using Floats = float __attribute__((vector_size(kLanes * sizeof(float))));

[[gnu::always_inline]] inline void load(const double* from, Doubles& to) {
  std::memcpy(&to, from, sizeof to);
}
/// Vectors go by reference: how one is returned hangs on what the CPU has.
[[gnu::always_inline]] inline void modulus(const Doubles& x, Doubles& to) {
  to = reinterpret_cast<Doubles>(reinterpret_cast<Longs>(x) & (Longs{} + 0x7fffffffffffffff));
}
[[gnu::always_inline]] inline void load(const float* from, Doubles& to) {
  Floats x;
  std::memcpy(&x, from, sizeof x);
  to = __builtin_convertvector(x, Doubles);
}

struct LaneSums {
  Doubles max_abs = {}, max_rel = {}, squares_a = {}, squares_b = {}, squares_diff = {}, dot = {};
  Longs beyond = {};

  template <bool kCounts>
  [[gnu::always_inline]] inline void add(const Doubles& a, const Doubles& b, const Doubles& abs,
                                         const Doubles& rel) {
    Doubles distance, size_a, size_b;
    modulus(a - b, distance);
    modulus(a, size_a);
    modulus(b, size_b);
    const Doubles scale = size_a > size_b ? size_a : size_b;
    const Doubles relative = distance / scale;  // NaN where both are zero: never the larger one
    max_abs = distance > max_abs ? distance : max_abs;
    max_rel = relative > max_rel ? relative : max_rel;
    squares_a += a * a;
    squares_b += b * b;
    squares_diff += distance * distance;
    dot += a * b;
    if constexpr (kCounts) beyond -= (distance > abs) & (distance > rel * scale) & (a != b);
  }
};

template <bool kCounts, class Real>
[[gnu::always_inline]] inline void sum_pairs(std::span<const Real> a, std::span<const Real> b,
                                             const Tolerance& tolerance, PairSums& out) {
  LaneSums lanes;
  const Doubles abs = Doubles{} + tolerance.abs, rel = Doubles{} + tolerance.rel;
  Doubles x, y;
  std::size_t i = 0;
  for (; i + kLanes <= a.size(); i += kLanes) {
    load(a.data() + i, x);
    load(b.data() + i, y);
    lanes.add<kCounts>(x, y, abs, rel);
  }
  if (i < a.size()) {  // zeros at the end add nothing
    Real rest_a[kLanes] = {}, rest_b[kLanes] = {};
    std::copy(a.begin() + static_cast<std::ptrdiff_t>(i), a.end(), rest_a);
    std::copy(b.begin() + static_cast<std::ptrdiff_t>(i), b.end(), rest_b);
    load(rest_a, x);
    load(rest_b, y);
    lanes.add<kCounts>(x, y, abs, rel);
  }
  for (std::size_t l = 0; l < kLanes; ++l) {
    out.max_abs = std::max(out.max_abs, lanes.max_abs[l]);
    out.max_rel = std::max(out.max_rel, lanes.max_rel[l]);
    out.beyond += lanes.beyond[l];
  }
  const auto joined = [](const Doubles& s) { return (s[0] + s[2]) + (s[1] + s[3]); };
  out.squares_a = joined(lanes.squares_a);
  out.squares_b = joined(lanes.squares_b);
  out.squares_diff = joined(lanes.squares_diff);
  out.dot = joined(lanes.dot);
}

template <class Real>
[[gnu::always_inline]] inline void sum_any(std::span<const Real> a, std::span<const Real> b,
                                           const Tolerance& tolerance, PairSums& out) {
  if (tolerance.abs >= 0 || tolerance.rel >= 0)
    sum_pairs<true>(a, b, tolerance, out);
  else
    sum_pairs<false>(a, b, tolerance, out);
}

template <class Real>
[[gnu::always_inline]] inline void sum_squares(std::span<const Real> values, double& out) {
  Doubles squares = {}, odd = {}, x;
  std::size_t i = 0;
  for (; i + 2 * kLanes <= values.size(); i += 2 * kLanes) {
    load(values.data() + i, x);
    squares += x * x;
    load(values.data() + i + kLanes, x);
    odd += x * x;
  }
  squares += odd;
  for (; i < values.size(); ++i) squares[0] += double{values[i]} * double{values[i]};
  out = (squares[0] + squares[2]) + (squares[1] + squares[3]);
}

template <class Real>
TESSERA_WIDE void sum_wide(std::span<const Real> a, std::span<const Real> b,
                           const Tolerance& tolerance, PairSums& out) {
  sum_any(a, b, tolerance, out);
}
template <class Real>
TESSERA_WIDE void squares_wide(std::span<const Real> values, double& out) {
  sum_squares(values, out);
}

}  // namespace

template <class Real>
PairSums pair_sums(std::span<const Real> a, std::span<const Real> b, const Tolerance& tolerance) {
  PairSums out;
  has_wide_vectors() ? sum_wide(a, b, tolerance, out) : sum_any(a, b, tolerance, out);
  return out;
}

template <class Real>
double square_sum(std::span<const Real> values) {
  double out = 0;
  has_wide_vectors() ? squares_wide(values, out) : sum_squares(values, out);
  return out;
}

template PairSums pair_sums(std::span<const float>, std::span<const float>, const Tolerance&);
template PairSums pair_sums(std::span<const double>, std::span<const double>, const Tolerance&);
template double square_sum(std::span<const float>);
template double square_sum(std::span<const double>);

}  // namespace tessera

#pragma once
// What `stat` and its quantiles do with float values, in vectors of 32 bytes: chosen at run time,
// where the CPU has them (has_wide_vectors). Every result is bit for bit that of the code for any
// machine: sums keep its four lanes, and where the sign of a zero hangs on the order of the lanes,
// these say so.
#include <cstddef>
#include <cstdint>
#include <span>

namespace tessera::wide {

#if defined(__x86_64__)
inline constexpr bool kBuilt = true;
#else
inline constexpr bool kBuilt = false;
#endif

bool all_finite(std::span<const float> values);

struct Extremes {
  float low, high;
  float smallest;  // modulus that is not zero; infinite where all are zero
  std::int64_t zeros;
  bool is_exact;  // false: low or high is a zero whose sign is not known
};
/// `values`: finite, at least one.
Extremes extremes_of(std::span<const float> values);

struct Outside {
  std::int64_t subnormal, bf16, fp16;
};
struct Bounds {
  float normal, bf16_over, fp16_over, fp16_under;
};
/// Counts finite values by modulus: below `normal`, at or above the upper bounds, at or below the
/// lower one.
Outside outside_of(std::span<const float> values, const Bounds& bounds);

struct Sums {
  double shifted, shifted_squares, moduli, squares;
};
Sums sums_of(std::span<const float> values, double shift);

/// As QuantileSelect's keys. `keys` has as many places as there are values.
void keys_of(std::span<const float> values, std::uint32_t* keys);
/// Bit i of the result: the upper 16 bits of keys[i] are one of `prefixes` (32 keys are read).
std::uint32_t find_prefixes(const std::uint32_t* keys, std::span<const std::uint32_t> prefixes);

}  // namespace tessera::wide

#include "lib/ops/inspect/stat_wide.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "lib/base/cpu.h"

namespace tessera::wide {
namespace {

constexpr std::size_t kLanes = 8;

TESSERA_WIDE inline __m256 modulus_of(__m256 x) {
  return _mm256_and_ps(x, _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff)));
}
TESSERA_WIDE inline __m256d modulus_of(__m256d x) {
  return _mm256_and_pd(x, _mm256_castsi256_pd(_mm256_set1_epi64x(0x7fffffffffffffff)));
}
TESSERA_WIDE inline float smallest_of(__m256 x) {
  alignas(32) float lanes[kLanes];
  _mm256_store_ps(lanes, x);
  return *std::min_element(lanes, lanes + kLanes);
}
TESSERA_WIDE inline float largest_of(__m256 x) {
  alignas(32) float lanes[kLanes];
  _mm256_store_ps(lanes, x);
  return *std::max_element(lanes, lanes + kLanes);
}
/// The sum of 8 counts that were counted down from zero.
TESSERA_WIDE inline std::int64_t count_of(__m256i x) {
  alignas(32) std::int32_t lanes[kLanes];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), x);
  std::int64_t sum = 0;
  for (const std::int32_t lane : lanes) sum -= lane;
  return sum;
}

}  // namespace

TESSERA_WIDE bool all_finite(std::span<const float> values) {
  const __m256i exponent = _mm256_set1_epi32(0x7f800000);
  __m256i special = _mm256_setzero_si256();
  std::size_t i = 0;
  for (; i + kLanes <= values.size(); i += kLanes) {
    const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(values.data() + i));
    special = _mm256_or_si256(special, _mm256_cmpeq_epi32(_mm256_and_si256(x, exponent), exponent));
  }
  bool finite = _mm256_testz_si256(special, special) != 0;
  for (; i < values.size(); ++i) finite = finite && std::isfinite(values[i]);
  return finite;
}

TESSERA_WIDE Extremes extremes_of(std::span<const float> values) {
  const __m256 infinite = _mm256_set1_ps(std::numeric_limits<float>::infinity());
  const __m256 zero = _mm256_setzero_ps();
  __m256 low = infinite, high = _mm256_sub_ps(zero, infinite), smallest = infinite;
  __m256i zeros = _mm256_setzero_si256();
  std::size_t i = 0;
  for (; i + kLanes <= values.size(); i += kLanes) {
    const __m256 x = _mm256_loadu_ps(values.data() + i);
    const __m256 is_zero = _mm256_cmp_ps(x, zero, _CMP_EQ_OQ);
    zeros = _mm256_add_epi32(zeros, _mm256_castps_si256(is_zero));
    low = _mm256_min_ps(x, low);
    high = _mm256_max_ps(x, high);
    smallest =
        _mm256_min_ps(_mm256_or_ps(modulus_of(x), _mm256_and_ps(is_zero, infinite)), smallest);
  }
  Extremes found{smallest_of(low), largest_of(high), smallest_of(smallest), count_of(zeros), true};
  for (; i < values.size(); ++i) {
    found.low = std::min(found.low, values[i]);
    found.high = std::max(found.high, values[i]);
    if (values[i] == 0)
      ++found.zeros;
    else
      found.smallest = std::min(found.smallest, std::abs(values[i]));
  }
  found.is_exact = found.low != 0 && found.high != 0;
  return found;
}

TESSERA_WIDE Outside outside_of(std::span<const float> values, const Bounds& bounds) {
  const __m256 normal = _mm256_set1_ps(bounds.normal);
  const __m256 bf16_over = _mm256_set1_ps(bounds.bf16_over);
  const __m256 fp16_over = _mm256_set1_ps(bounds.fp16_over);
  const __m256 fp16_under = _mm256_set1_ps(bounds.fp16_under);
  const __m256 zero = _mm256_setzero_ps();
  __m256i subnormal = _mm256_setzero_si256(), bf16 = subnormal, fp16 = subnormal;
  std::size_t i = 0;
  for (; i + kLanes <= values.size(); i += kLanes) {
    const __m256 modulus = modulus_of(_mm256_loadu_ps(values.data() + i));
    const __m256 some = _mm256_cmp_ps(modulus, zero, _CMP_GT_OQ);
    const __m256 below = _mm256_and_ps(some, _mm256_cmp_ps(modulus, normal, _CMP_LT_OQ));
    const __m256 over = _mm256_cmp_ps(modulus, bf16_over, _CMP_GE_OQ);
    const __m256 beyond =
        _mm256_or_ps(_mm256_cmp_ps(modulus, fp16_over, _CMP_GE_OQ),
                     _mm256_and_ps(some, _mm256_cmp_ps(modulus, fp16_under, _CMP_LE_OQ)));
    subnormal = _mm256_add_epi32(subnormal, _mm256_castps_si256(below));
    bf16 = _mm256_add_epi32(bf16, _mm256_castps_si256(over));
    fp16 = _mm256_add_epi32(fp16, _mm256_castps_si256(beyond));
  }
  Outside found{count_of(subnormal), count_of(bf16), count_of(fp16)};
  for (; i < values.size(); ++i) {
    const float modulus = std::abs(values[i]);
    found.subnormal += modulus > 0 && modulus < bounds.normal;
    found.bf16 += modulus >= bounds.bf16_over;
    found.fp16 += modulus >= bounds.fp16_over || (modulus > 0 && modulus <= bounds.fp16_under);
  }
  return found;
}

TESSERA_WIDE Sums sums_of(std::span<const float> values, double shift) {
  const __m256d shifts = _mm256_set1_pd(shift);
  __m256d shifted = _mm256_setzero_pd(), shifted_squares = shifted, moduli = shifted,
          squares = shifted;
  std::size_t i = 0;
  for (; i + 4 <= values.size(); i += 4) {
    const __m256d x = _mm256_cvtps_pd(_mm_loadu_ps(values.data() + i));
    const __m256d y = _mm256_sub_pd(x, shifts);
    shifted = _mm256_add_pd(shifted, y);
    shifted_squares = _mm256_add_pd(shifted_squares, _mm256_mul_pd(y, y));
    moduli = _mm256_add_pd(moduli, modulus_of(x));
    squares = _mm256_add_pd(squares, _mm256_mul_pd(x, x));
  }
  alignas(32) double sums[4][4];
  _mm256_store_pd(sums[0], shifted);
  _mm256_store_pd(sums[1], shifted_squares);
  _mm256_store_pd(sums[2], moduli);
  _mm256_store_pd(sums[3], squares);
  for (; i < values.size(); ++i) {
    const double x = values[i], y = x - shift;
    sums[0][0] += y;
    sums[1][0] += y * y;
    sums[2][0] += std::abs(x);
    sums[3][0] += x * x;
  }
  const auto joined = [](const double* s) { return (s[0] + s[2]) + (s[1] + s[3]); };
  return {joined(sums[0]), joined(sums[1]), joined(sums[2]), joined(sums[3])};
}

TESSERA_WIDE void keys_of(std::span<const float> values, std::uint32_t* keys) {
  const __m256 zero = _mm256_setzero_ps();
  const __m256i top = _mm256_set1_epi32(std::numeric_limits<std::int32_t>::min());
  std::size_t i = 0;
  for (; i + kLanes <= values.size(); i += kLanes) {
    // Both zeros are one value.
    const __m256i bits =
        _mm256_castps_si256(_mm256_add_ps(_mm256_loadu_ps(values.data() + i), zero));
    const __m256i turn = _mm256_or_si256(_mm256_srai_epi32(bits, 31), top);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(keys + i), _mm256_xor_si256(bits, turn));
  }
  for (; i < values.size(); ++i) {
    const float x = values[i] + 0.0f;
    std::uint32_t bits;
    __builtin_memcpy(&bits, &x, sizeof bits);
    keys[i] = bits ^ ((0u - (bits >> 31)) | 0x80000000u);
  }
}

TESSERA_WIDE std::uint32_t find_prefixes(const std::uint32_t* keys,
                                         std::span<const std::uint32_t> prefixes) {
  const auto* from = reinterpret_cast<const __m256i*>(keys);
  const __m256i a = _mm256_srli_epi32(_mm256_loadu_si256(from), 16);
  const __m256i b = _mm256_srli_epi32(_mm256_loadu_si256(from + 1), 16);
  const __m256i c = _mm256_srli_epi32(_mm256_loadu_si256(from + 2), 16);
  const __m256i d = _mm256_srli_epi32(_mm256_loadu_si256(from + 3), 16);
  // 16 bits a lane. Packing goes by halves of a vector: undone at the end.
  const __m256i ab = _mm256_packus_epi32(a, b), cd = _mm256_packus_epi32(c, d);
  __m256i in_ab = _mm256_setzero_si256(), in_cd = in_ab;
  for (const std::uint32_t prefix : prefixes) {
    const __m256i sought = _mm256_set1_epi16(static_cast<std::int16_t>(prefix));
    in_ab = _mm256_or_si256(in_ab, _mm256_cmpeq_epi16(ab, sought));
    in_cd = _mm256_or_si256(in_cd, _mm256_cmpeq_epi16(cd, sought));
  }
  // By 4 keys: a0 b0 c0 d0 | a1 b1 c1 d1.
  const __m256i found = _mm256_packs_epi16(in_ab, in_cd);
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  return static_cast<std::uint32_t>(
      _mm256_movemask_epi8(_mm256_permutevar8x32_epi32(found, order)));
}

}  // namespace tessera::wide

#endif

// Wide vectors against the same sums, counts and keys written out lane by lane.
#include "lib/ops/inspect/stat_wide.h"

#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "lib/base/cpu.h"
#include "lib/ops/inspect/stat_pass.h"

namespace stat_wide_test {

using namespace tessera;

namespace {

/// Finite values of every size, zeros of both signs, subnormals; by kind, few distinct ones.
std::vector<float> finite_values(std::mt19937_64& random, std::size_t count, int kind) {
  std::vector<float> values(count);
  for (float& x : values) {
    if (kind == 0) {
      do {
        x = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
      } while (!std::isfinite(x));
    } else if (kind == 1) {
      x = std::normal_distribution<float>()(random);
    } else if (kind == 2) {
      x = std::bit_cast<float>(static_cast<std::uint32_t>(random() % 2000));
    } else {
      x = random() % 2 == 0 ? 0.0f : -0.0f;
    }
    if (kind < 3 && random() % 7 == 0) x = random() % 2 == 0 ? 0.0f : -0.0f;
  }
  return values;
}

struct Lanes {
  double sums[4] = {};
  double joined() const { return (sums[0] + sums[2]) + (sums[1] + sums[3]); }
};

/// Lane by lane as ever: four of them, what is left over in the first.
wide::Sums sums_by_lanes(const std::vector<float>& values, double shift) {
  Lanes shifted, shifted_squares, moduli, squares;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::size_t lane = i < values.size() / 4 * 4 ? i % 4 : 0;
    const double x = values[i], y = x - shift;
    shifted.sums[lane] += y;
    shifted_squares.sums[lane] += y * y;
    moduli.sums[lane] += std::abs(x);
    squares.sums[lane] += x * x;
  }
  return {shifted.joined(), shifted_squares.joined(), moduli.joined(), squares.joined()};
}

#if defined(__x86_64__)
template <class Check>
void for_each_case(Check&& check) {
  if (!has_wide_vectors()) {
    WARN("this CPU has no vectors of 32 bytes: skipped");
    return;
  }
  std::mt19937_64 random(5);
  for (int round = 0; round < 400; ++round) {
    INFO("round " << round);
    const std::size_t count = round % 2 == 0 ? 256 : 1 + random() % 256;
    check(random, finite_values(random, count, round / 2 % 4));
  }
}
#endif

}  // namespace

#if defined(__x86_64__)
TEST_CASE("sums of wide vectors are bit for bit those of four lanes") {
  for_each_case([](std::mt19937_64& random, const std::vector<float>& values) {
    const double shift = values[random() % values.size()];
    const wide::Sums got = wide::sums_of(values, shift), want = sums_by_lanes(values, shift);
    REQUIRE(std::bit_cast<std::uint64_t>(got.shifted) ==
            std::bit_cast<std::uint64_t>(want.shifted));
    REQUIRE(got.shifted_squares == want.shifted_squares);
    REQUIRE(got.moduli == want.moduli);
    REQUIRE(got.squares == want.squares);
  });
}

TEST_CASE("extremes and counts of wide vectors are those of a plain loop") {
  const wide::Bounds bounds{1.17549435e-38f, 3.39617753e38f, 65520.0f, 2.98023224e-8f};
  for_each_case([&](std::mt19937_64&, const std::vector<float>& values) {
    const wide::Extremes got = wide::extremes_of(values);
    REQUIRE(got.low == std::ranges::min(values));
    REQUIRE(got.high == std::ranges::max(values));
    REQUIRE(got.is_exact == (got.low != 0 && got.high != 0));
    REQUIRE(got.zeros == std::ranges::count(values, 0.0f));
    float smallest = std::numeric_limits<float>::infinity();
    wide::Outside want{0, 0, 0};
    for (const float x : values) {
      const float modulus = std::abs(x);
      if (modulus > 0) smallest = std::min(smallest, modulus);
      want.subnormal += modulus > 0 && !std::isnormal(x);
      want.bf16 += modulus >= bounds.bf16_over;
      want.fp16 += modulus >= bounds.fp16_over || (modulus > 0 && modulus <= bounds.fp16_under);
    }
    REQUIRE(got.smallest == smallest);
    const wide::Outside found = wide::outside_of(values, bounds);
    REQUIRE(found.subnormal == want.subnormal);
    REQUIRE(found.bf16 == want.bf16);
    REQUIRE(found.fp16 == want.fp16);
  });
}

TEST_CASE("one value that is not finite is seen wherever it stands") {
  for_each_case([](std::mt19937_64& random, std::vector<float> values) {
    REQUIRE(wide::all_finite(values));
    const float special[] = {std::numeric_limits<float>::quiet_NaN(),
                             std::numeric_limits<float>::infinity(),
                             -std::numeric_limits<float>::infinity()};
    values[random() % values.size()] = special[random() % 3];
    REQUIRE_FALSE(wide::all_finite(values));
  });
}

TEST_CASE("keys order as values do and prefixes are found where they are") {
  for_each_case([](std::mt19937_64& random, const std::vector<float>& values) {
    std::vector<std::uint32_t> keys(std::max<std::size_t>(values.size(), 32));
    wide::keys_of(values, keys.data());
    for (std::size_t i = 1; i < values.size(); ++i) {
      REQUIRE((keys[i - 1] < keys[i]) == (values[i - 1] < values[i]));
      REQUIRE((keys[i - 1] == keys[i]) == (values[i - 1] == values[i]));
    }
    std::vector<std::uint32_t> prefixes(random() % 14);
    for (std::uint32_t& prefix : prefixes) prefix = keys[random() % keys.size()] >> 16;
    const std::uint32_t found = wide::find_prefixes(keys.data(), prefixes);
    for (std::size_t i = 0; i < 32; ++i)
      REQUIRE((found >> i & 1) == (std::ranges::count(prefixes, keys[i] >> 16) > 0 ? 1u : 0u));
  });
}

TEST_CASE("the sign of an extreme that is zero is that of the first lane that has one") {
  // Lanes of 4, as on any machine: the first one goes 5, values[4], values[8] ...
  for (const bool negative_first : {false, true}) {
    std::vector<float> values(256, negative_first ? 0.0f : -0.0f);
    values[0] = 5;
    values[4] = negative_first ? -0.0f : 0.0f;
    StatPass pass(DType::kFloat32, 1, false);
    pass.add(std::span<const float>(values), 0);
    CHECK(pass.high() == 5);
    CHECK(std::signbit(pass.low()) == negative_first);
  }
}
#endif

}  // namespace stat_wide_test

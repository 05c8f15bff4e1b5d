// Quantiles found digit by digit, against sorting.
#include "lib/ops/inspect/quantile_select.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>

#include "tests/support/sanitized.h"

namespace quantile_select_test {

using namespace tessera;
using testing::draws;

namespace {

constexpr double kFractions[] = {0, 0.01, 0.25, 0.5, 0.75, 0.99, 1};

/// As if of `count` values: many are found by digits, few by sorting.
template <class Real>
std::vector<double> selected(const std::vector<Real>& values, std::int64_t count) {
  const auto finite = std::ranges::count_if(values, [](Real x) { return std::isfinite(x); });
  QuantileSelect<Real> select(kFractions, count);
  const auto feed = [&] {  // in two cuts
    const std::size_t cut = values.size() / 3;
    select.add(std::span(values).first(cut));
    select.add(std::span(values).subspan(cut));
  };
  feed();
  select.end_first_pass(finite);
  while (!select.done()) {
    feed();
    select.end_pass();
  }
  return select.values();
}

template <class Real>
std::vector<double> sorted(std::vector<Real> values) {
  std::erase_if(values, [](Real x) { return !std::isfinite(x); });
  std::ranges::sort(values);
  std::vector<double> quantiles;
  for (const double fraction : kFractions) {
    const double position = fraction * static_cast<double>(values.size() - 1);
    const auto below = static_cast<std::size_t>(position);
    const double low = values[below], high = values[std::min(below + 1, values.size() - 1)];
    quantiles.push_back(low + (high - low) * (position - static_cast<double>(below)));
  }
  return quantiles;
}

/// Counts of 1 and up, of few and many distinct values, near and far, with what is left out.
template <class Real>
void compare_all() {
  std::mt19937_64 random(7);
  for (int round = 0; round < draws(300); ++round) {
    std::vector<Real> values(1 + random() % (round < draws(200) ? 9 : 3000));
    const int kind = round % 5;
    for (Real& x : values) {
      if (kind == 0) x = static_cast<Real>(static_cast<int>(random() % 5) - 2);
      if (kind == 1) x = static_cast<Real>(std::normal_distribution<>()(random));
      if (kind == 2) x = static_cast<Real>(1 + 1e-6 * static_cast<double>(random() % 100));
      if (kind == 3) x = static_cast<Real>(std::ldexp(1.0, static_cast<int>(random() % 200) - 100));
      if (kind == 4) x = random() % 2 ? Real{0} : -Real{0};
    }
    constexpr Real kInf = std::numeric_limits<Real>::infinity();
    if (round % 3 == 0)
      values.insert(values.end(), {kInf, -kInf, std::numeric_limits<Real>::quiet_NaN(),
                                   -std::numeric_limits<Real>::quiet_NaN()});
    INFO("round " << round << " of " << values.size() << " values");
    constexpr std::int64_t kFew = QuantileSelect<Real>::kFew;
    REQUIRE(selected(values, kFew + 1) == sorted(values));
    REQUIRE(selected(values, kFew) == sorted(values));
  }
}

}  // namespace

TEST_CASE("quantiles found by digits are those of the sorted floats") { compare_all<float>(); }

TEST_CASE("quantiles found by digits are those of the sorted doubles") { compare_all<double>(); }

}  // namespace quantile_select_test

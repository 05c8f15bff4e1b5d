#pragma once
// How the cost of something grows with its size: the exponent p of cost ~ size^p, by processor time.
// The least of several runs counts, which other work on the machine disturbs least.
#include <algorithm>
#include <cmath>
#include <ctime>

namespace tessera::testing {

/// Processor seconds of `run`.
template <class Run>
double processor_seconds(Run&& run) {
  const std::clock_t before = std::clock();
  run();
  return static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC;
}

/// `seconds_of(size)`: what one run costs. The sizes are measured by turns, at most `rounds` times:
/// once the exponent is below `enough` the rest is left out, as more turns only come closer to what
/// the work itself costs.
template <class SecondsOf>
double growth_exponent(int small, int large, SecondsOf&& seconds_of, int rounds = 5,
                       double enough = -1) {
  constexpr double kClockStep = 1e-6;  // a run may take less than the clock can say
  double least_small = 1e9, least_large = 1e9, exponent = 1e9;
  for (int round = 0; round < rounds && exponent >= enough; ++round) {
    least_small = std::min<double>(least_small, seconds_of(small));
    least_large = std::min<double>(least_large, seconds_of(large));
    exponent = std::log(std::max(least_large, kClockStep) / std::max(least_small, kClockStep)) /
               std::log(static_cast<double>(large) / small);
  }
  return exponent;
}

}  // namespace tessera::testing

// Whether a matrix still looks as an initializer left it.
//
//   kurtosis   1.8 of a uniform, 3 of a normal distribution; +- 4 standard errors of the sample
//   spread     1/sqrt(3 n) (nn.Linear's default), 1/sqrt(n), sqrt(2/n), sqrt(2/(n+m)), 0.02, 0.01
//              and 1; n, m: fan in and out; within 4 standard errors, 2 % at least
#include <algorithm>
#include <cmath>

#include "lib/ops/audit/deep.h"

namespace tessera {
namespace {

struct SampledForm {
  double kurtosis = 0;
  double deviation = 0;
  double mean = 0;
};

SampledForm form_of(const std::vector<double>& sample) {
  const double n = static_cast<double>(sample.size());
  SampledForm form;
  for (const double x : sample) form.mean += x / n;
  double second = 0, fourth = 0;
  for (const double x : sample) {
    const double d = (x - form.mean) * (x - form.mean);
    second += d / n;
    fourth += d * d / n;
  }
  form.deviation = std::sqrt(second);
  form.kurtosis = second > 0 ? fourth / (second * second) : 0;
  return form;
}

}  // namespace

bool looks_fresh(const TensorFact& fact, const TensorNumbers& numbers) {
  constexpr std::size_t kLeastSample = 256;
  constexpr std::int64_t kLeastNumel = 4096;  // of fewer, spreads are known too badly
  if (fact.rank < 2 || fact.numel < kLeastNumel || numbers.sample.size() < kLeastSample ||
      numbers.nan + numbers.inf > 0)
    return false;
  const double numel = static_cast<double>(fact.numel), count = static_cast<double>(numbers.count);
  const double mean_square = numbers.l2 * numbers.l2 / numel;
  const double spread = std::sqrt(std::max(0.0, mean_square - numbers.mean * numbers.mean));
  const SampledForm form = form_of(numbers.sample);
  const double n = static_cast<double>(numbers.sample.size());
  const double error = std::sqrt(24 / n);
  const bool uniform = std::abs(form.kurtosis - 1.8) < 4 * std::sqrt(0.8 / n) + 0.02 &&
                       numbers.abs_max <= 1.75 * spread;
  const bool normal = std::abs(form.kurtosis - 3) < std::min(4 * error, 0.6);
  if (!uniform && !normal) return false;
  if (std::abs(numbers.mean) > 5 * spread / std::sqrt(count) + 1e-12) return false;
  const double in = static_cast<double>(fact.fan_in),
               out = static_cast<double>(fact.numel / std::max<std::int64_t>(1, fact.fan_in));
  const double tolerance = std::max(0.02, 4 / std::sqrt(2 * count));
  for (const double usual : {1 / std::sqrt(3 * in), 1 / std::sqrt(in), std::sqrt(2 / in),
                             std::sqrt(2 / (in + out)), std::sqrt(1 / (3 * out)), 0.02, 0.01, 1.0})
    if (std::abs(spread / usual - 1) < tolerance) return true;
  return false;
}

std::optional<SampledChange> sampled_change(const TensorNumbers& before,
                                            const TensorNumbers& after) {
  if (before.count != after.count || before.sample.size() != after.sample.size())
    return std::nullopt;
  SampledChange out;
  double dot = 0, now = 0;
  for (std::size_t i = 0; i < before.sample.size(); ++i) {
    const double a = before.sample[i], b = after.sample[i];
    if (!std::isfinite(a) || !std::isfinite(b)) return std::nullopt;
    out.change += (b - a) * (b - a);
    out.before += a * a;
    now += b * b;
    dot += a * b;
  }
  if (out.before > 0 && now > 0) out.cosine = dot / std::sqrt(out.before * now);
  out.change = std::sqrt(out.change);
  out.before = std::sqrt(out.before);
  return out;
}

}  // namespace tessera

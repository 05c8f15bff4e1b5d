#include "lib/ops/inspect/quantile_select.h"

#include <tessera/base/error.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <type_traits>

#include "lib/base/cpu.h"
#include "lib/base/sort_unique.h"
#include "lib/ops/inspect/stat_wide.h"

namespace tessera {

template <class Real>
QuantileSelect<Real>::QuantileSelect(std::span<const double> fractions, std::int64_t count)
    : fractions_(fractions),
      few_(count <= kFew),
      prefixes_(1),
      counts_(fractions.empty() || few_ ? 0 : kDigits) {
  TESSERA_CHECK(std::ranges::is_sorted(fractions) && fractions.size() < 128);
}

/// Keys order as the values do: of negative ones all bits turn, of others the sign.
template <class Real>
typename QuantileSelect<Real>::Key QuantileSelect<Real>::key_of(Real x) {
  const Key bits = std::bit_cast<Key>(x + Real{0});  // both zeros are one value
  const Key sign = Key{0} - (bits >> (kKeyBits - 1));
  return bits ^ (sign | Key{1} << (kKeyBits - 1));
}

template <class Real>
Real QuantileSelect<Real>::real_of(Key key) {
  const Key positive = Key{0} - (key >> (kKeyBits - 1));
  return std::bit_cast<Real>(key ^ (~positive | Key{1} << (kKeyBits - 1)));
}

template <class Real>
void QuantileSelect<Real>::add(std::span<const Real> values) {
  if (done()) return;
  if (few_) {
    for (const Real x : values)
      if (std::isfinite(x)) kept_.push_back(x + Real{0});
    return;
  }
  if constexpr (wide::kBuilt && std::is_same_v<Real, float>) {
    if (has_wide_vectors()) return count_wide(values);
  }
  pass_ == 0 ? count_first_digit(values) : count_next_digit(values);
}

template <class Real>
void QuantileSelect<Real>::count_first_digit(std::span<const Real> values) {
  std::uint64_t* counts = counts_.data();
  for (const Real x : values) ++counts[key_of(x) >> (kKeyBits - kDigitBits)];
}

template <class Real>
void QuantileSelect<Real>::count_next_digit(std::span<const Real> values) {
  for (const Real x : values) {
    const Key key = key_of(x);
    if (first_prefix_[key >> (kKeyBits - kDigitBits)] != 0) count_below_prefix(key);
  }
}

/// Counts a key whose first digit is that of some prefix.
template <class Real>
void QuantileSelect<Real>::count_below_prefix(Key key) {
  const int known = pass_ * kDigitBits, shift = kKeyBits - known - kDigitBits;
  const Key prefix = key >> (kKeyBits - known);
  std::size_t i = first_prefix_[key >> (kKeyBits - kDigitBits)] - 1u;
  while (i < prefixes_.size() && prefixes_[i] < prefix) ++i;
  if (i < prefixes_.size() && prefixes_[i] == prefix)
    ++counts_[i * kDigits + (key >> shift & (kDigits - 1))];
}

/// Either of the above, of floats.
template <class Real>
void QuantileSelect<Real>::count_wide(std::span<const float> values) {
  if constexpr (wide::kBuilt) {
    constexpr std::size_t kBlock = 512, kLanes = 32;
    std::array<std::uint32_t, kBlock> keys = {};
    for (std::size_t at = 0; at < values.size(); at += kBlock) {
      const std::size_t count = std::min(kBlock, values.size() - at);
      wide::keys_of(values.subspan(at, count), keys.data());
      if (pass_ == 0) {
        std::uint64_t* counts = counts_.data();
        for (std::size_t i = 0; i < count; ++i) ++counts[keys[i] >> kDigitBits];
        continue;
      }
      for (std::size_t i = 0; i < count; i += kLanes) {
        std::uint32_t found = wide::find_prefixes(keys.data() + i, first_digits_);
        if (count - i < kLanes) found &= (std::uint32_t{1} << (count - i)) - 1;
        for (; found != 0; found &= found - 1)
          count_below_prefix(keys[i + static_cast<std::size_t>(std::countr_zero(found))]);
      }
    }
  }
}

template <class Real>
void QuantileSelect<Real>::end_first_pass(std::int64_t finite) {
  if (fractions_.empty()) return;
  for (const double fraction : fractions_) {
    const double position = fraction * static_cast<double>(finite - 1);
    const auto below = static_cast<std::int64_t>(position);
    sought_.push_back({0, below});
    sought_.push_back({0, std::min(below + 1, finite - 1)});
    weights_.push_back(position - static_cast<double>(below));
  }
  if (few_) {
    std::ranges::sort(kept_);
    pass_ = kPasses;
    return;
  }
  // NaN and Inf have digits of their own; ranks end below those of the upper end.
  const Key low = key_of(-std::numeric_limits<Real>::infinity()) >> (kKeyBits - kDigitBits);
  std::fill_n(counts_.begin(), static_cast<std::size_t>(low) + 1, 0);
  end_pass();
}

template <class Real>
void QuantileSelect<Real>::end_pass() {
  if (done()) return;
  std::vector<Key> next;  // per value sought
  for (Sought& sought : sought_) {
    const std::uint64_t* counts = counts_.data() + sought.prefix * kDigits;
    std::size_t digit = 0;
    while (digit < kDigits && sought.rank >= static_cast<std::int64_t>(counts[digit]))
      sought.rank -= static_cast<std::int64_t>(counts[digit++]);
    TESSERA_CHECK(digit < kDigits);
    const Key known = pass_ == 0 ? 0 : prefixes_[sought.prefix] << kDigitBits;
    next.push_back(known | static_cast<Key>(digit));
  }
  prefixes_ = next;
  sort_unique(prefixes_);
  for (std::size_t i = 0; i < next.size(); ++i) {
    const auto at = std::ranges::lower_bound(prefixes_, next[i]);
    sought_[i].prefix = static_cast<std::size_t>(at - prefixes_.begin());
  }
  if (++pass_ == kPasses) return;
  counts_.assign(prefixes_.size() * kDigits, 0);
  first_prefix_.assign(kDigits, 0);
  first_digits_.clear();
  for (std::size_t i = prefixes_.size(); i-- > 0;) {
    const auto digit = static_cast<std::uint32_t>(prefixes_[i] >> (pass_ - 1) * kDigitBits);
    first_prefix_[digit] = static_cast<std::uint8_t>(i + 1);
    first_digits_.push_back(digit);
  }
}

template <class Real>
Real QuantileSelect<Real>::found(const Sought& sought) const {
  return few_ ? kept_[static_cast<std::size_t>(sought.rank)] : real_of(prefixes_[sought.prefix]);
}

template <class Real>
std::vector<double> QuantileSelect<Real>::values() const {
  std::vector<double> values;
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    const double low = found(sought_[2 * i]);
    const double high = found(sought_[2 * i + 1]);
    values.push_back(low + (high - low) * weights_[i]);
  }
  return values;
}

template class QuantileSelect<float>;
template class QuantileSelect<double>;

}  // namespace tessera

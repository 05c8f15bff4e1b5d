#pragma once
// Quantiles of a tensor, exactly, without sorting it or holding it: all values are fed once per
// pass, in any cut, and each pass fixes 16 more bits of the values sought. Few values are kept and
// sorted instead: counts of all digits would cost more than they do.
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

namespace tessera {

/// `Real` is float (2 passes) or double (4); of few values, 1. NaN and Inf may be fed and are left
/// out.
template <class Real>
class QuantileSelect {
 public:
  static constexpr std::int64_t kFew = 1 << 14;

  /// Fractions in ascending order; with none, nothing is counted and done() holds at once. `count`:
  /// values that a pass feeds.
  QuantileSelect(std::span<const double> fractions, std::int64_t count);

  void add(std::span<const Real> values);
  /// After the first pass: how many of the values are finite, one at least.
  void end_first_pass(std::int64_t finite);
  void end_pass();
  bool done() const { return fractions_.empty() || pass_ == kPasses; }
  /// When done: per fraction the quantile, linear between neighbours as numpy.quantile's default.
  std::vector<double> values() const;

 private:
  using Key = std::conditional_t<sizeof(Real) == 4, std::uint32_t, std::uint64_t>;
  static constexpr int kKeyBits = static_cast<int>(sizeof(Key)) * 8;
  static constexpr int kDigitBits = 16;
  static constexpr int kPasses = kKeyBits / kDigitBits;
  static constexpr std::size_t kDigits = std::size_t{1} << kDigitBits;

  struct Sought {
    std::size_t prefix;  // index in prefixes_; of few values 0
    std::int64_t rank;   // among the values with that prefix; 0 = the smallest
  };

  static Key key_of(Real x);
  static Real real_of(Key key);
  void count_first_digit(std::span<const Real> values);
  void count_next_digit(std::span<const Real> values);
  void count_below_prefix(Key key);
  void count_wide(std::span<const float> values);
  Real found(const Sought& sought) const;

  std::span<const double> fractions_;
  bool few_;
  std::vector<Real> kept_;       // of few values the finite ones
  std::vector<double> weights_;  // per fraction: of the upper neighbour
  std::vector<Sought> sought_;   // per fraction: its lower and its upper neighbour
  int pass_ = 0;
  std::vector<Key> prefixes_;                // the bits known so far, distinct, ascending
  std::vector<std::uint8_t> first_prefix_;   // by first digit: 1 + its first prefix, or 0
  std::vector<std::uint32_t> first_digits_;  // of prefixes_
  std::vector<std::uint64_t> counts_;        // [prefix][digit]
};

}  // namespace tessera

#pragma once
// The 8- and 16-bit floats as bit patterns: widening to float (exact) and rounding from it (to
// nearest, ties to even). What does not fit follows PyTorch: Inf where the format has one, else
// NaN; never the largest finite value.
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace tessera::minifloat {

/// sign | exponent | mantissa. kIeee: the top exponent holds Inf and NaN. kFinite ("fn"): only all
/// ones is NaN, no Inf. kFiniteUnsignedZero ("fnuz"): only "minus zero" is NaN, no Inf.
enum class Specials : std::uint8_t { kIeee, kFinite, kFiniteUnsignedZero };

template <class CodeType, int kExponentBits, int kMantissaBits, int kBias, Specials kSpecials>
struct Format {
  using Code = CodeType;
  static constexpr Code kSign = Code(1u << (kExponentBits + kMantissaBits));
  static constexpr Code kMagnitude = Code(kSign - 1);
  static constexpr Code kTopExponent = Code(((1u << kExponentBits) - 1) << kMantissaBits);
  /// The first magnitude that is no finite number.
  static constexpr Code kFirstSpecial = kSpecials == Specials::kIeee     ? kTopExponent
                                        : kSpecials == Specials::kFinite ? kMagnitude
                                                                         : kSign;
  static constexpr Code kNan = kSpecials == Specials::kIeee
                                   ? Code(kTopExponent | (1u << (kMantissaBits - 1)))
                                   : kFirstSpecial;

  static bool is_finite(Code code) {
    if constexpr (kSpecials == Specials::kFiniteUnsignedZero) return code != kNan;
    return (code & kMagnitude) < kFirstSpecial;
  }
  static bool is_zero(Code code) { return (code & kMagnitude) == 0 && is_finite(code); }

  static float decode(Code code) {
    const auto magnitude = static_cast<std::uint32_t>(code & kMagnitude);
    float value;
    if (!is_finite(code)) {
      const bool infinite = kSpecials == Specials::kIeee && magnitude == kTopExponent;
      value = infinite ? std::numeric_limits<float>::infinity()
                       : std::numeric_limits<float>::quiet_NaN();
    } else if (magnitude < (1u << kMantissaBits)) {
      // Subnormal: magnitude units of 2^(1 - bias - mantissa bits).
      value = static_cast<float>(magnitude) * power_of_two(1 - kBias - kMantissaBits);
    } else {
      value = std::bit_cast<float>((magnitude << (23 - kMantissaBits)) +
                                   (static_cast<std::uint32_t>(127 - kBias) << 23));
    }
    return (code & kSign) != 0 ? -value : value;
  }

  static Code encode(float value, bool& too_large) {
    const auto raw = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t bits = raw & 0x7FFFFFFFu;
    const Code sign = (raw >> 31) != 0 ? kSign : Code(0);
    too_large = false;
    if (bits > 0x7F800000u) return with_sign(kNan, sign);
    std::uint32_t code;
    if (bits < (static_cast<std::uint32_t>(128 - kBias) << 23)) {
      // A subnormal result: adding a number whose last bit is the format's smallest step lets the
      // FPU round.
      const float magic = power_of_two(1 - kBias - kMantissaBits + 23);
      code = std::bit_cast<std::uint32_t>(std::bit_cast<float>(bits) + magic) -
             std::bit_cast<std::uint32_t>(magic);
    } else {
      constexpr int kDropped = 23 - kMantissaBits;
      const std::uint32_t rebased = bits - (static_cast<std::uint32_t>(127 - kBias) << 23);
      const std::uint32_t odd = (rebased >> kDropped) & 1;
      code = (rebased + (1u << (kDropped - 1)) - 1 + odd) >> kDropped;
    }
    too_large = code >= kFirstSpecial;
    if (too_large) code = kSpecials == Specials::kFinite ? kFirstSpecial - 1 : kFirstSpecial;
    return with_sign(static_cast<Code>(code), sign);
  }

 private:
  static constexpr float power_of_two(int exponent) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(exponent + 127) << 23);
  }
  static Code with_sign(Code magnitude, Code sign) {
    if constexpr (kSpecials == Specials::kFiniteUnsignedZero)
      return magnitude == 0 ? magnitude : Code(magnitude | sign);
    return Code(magnitude | sign);
  }
};

using Float16 = Format<std::uint16_t, 5, 10, 15, Specials::kIeee>;
using Float8E5M2 = Format<std::uint8_t, 5, 2, 15, Specials::kIeee>;
using Float8E4M3Fn = Format<std::uint8_t, 4, 3, 7, Specials::kFinite>;
using Float8E5M2FnUz = Format<std::uint8_t, 5, 2, 16, Specials::kFiniteUnsignedZero>;
using Float8E4M3FnUz = Format<std::uint8_t, 4, 3, 8, Specials::kFiniteUnsignedZero>;

/// The upper half of a float32.
struct BFloat16 {
  using Code = std::uint16_t;
  static bool is_finite(Code code) { return (code & 0x7F80) != 0x7F80; }
  static bool is_zero(Code code) { return (code & 0x7FFF) == 0; }
  static float decode(Code code) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(code) << 16);
  }
  static Code encode(float value, bool& too_large) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const bool nan = (bits & 0x7FFFFFFFu) > 0x7F800000u;
    const auto code = nan ? static_cast<Code>((bits >> 16) | 0x40)
                          : static_cast<Code>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
    too_large = !nan && !is_finite(code);
    return code;
  }
};

/// An exponent alone: 2^(code - 127), no sign, no zero; 255 is NaN. Rounding is PyTorch's: up
/// from 1.5 on, and Inf becomes NaN.
struct Float8E8M0Fnu {
  using Code = std::uint8_t;
  static bool is_finite(Code code) { return code != 0xFF; }
  static bool is_zero(Code) { return false; }
  static float decode(Code code) {
    if (code == 0xFF) return std::numeric_limits<float>::quiet_NaN();
    if (code == 0) return std::bit_cast<float>(0x00400000u);
    return std::bit_cast<float>(static_cast<std::uint32_t>(code) << 23);
  }
  static Code encode(float value, bool& too_large) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(value) & 0x7FFFFFFFu;
    const std::uint32_t exponent = bits >> 23;
    const std::uint32_t mantissa = bits & 0x7FFFFFu;
    const bool up = mantissa > 0x400000u || (mantissa == 0x400000u && exponent > 0);
    const auto code = exponent == 0xFF ? Code{0xFF} : static_cast<Code>(exponent + up);
    too_large = value < 0 || (code == 0xFF && bits <= 0x7F800000u);
    return code;
  }
};

}  // namespace tessera::minifloat

#include "lib/state/block_quantizer.h"

#include <tessera/base/checked.h>
#include <tessera/base/error.h>
#include <tessera/tensor/cast.h>

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <vector>

#include "lib/base/cpu.h"
#include "lib/state/quant_codes.h"

namespace tessera {
namespace {

constexpr std::int64_t kBand = 128;  // rows and columns of an fp8 block
constexpr std::int64_t kMxGroup = 32, kNvGroup = 16;
constexpr std::int64_t kElementsAtOnce = std::int64_t{1} << 20;
constexpr std::int64_t kFourBitTile = 2048;  // elements; whole groups
constexpr float kLargestE4m3 = 448, kLargestE2m1 = 6;
constexpr std::int32_t kMagnitudeBits = 0x7FFFFFFF, kInfinityBits = 0x7F800000;

void widen(DType dtype, const std::byte* elements, std::size_t count, float* out) {
  if (dtype == DType::kBFloat16) {
    for (std::size_t i = 0; i < count; ++i)
      out[i] = std::bit_cast<float>(std::uint32_t{load_le<std::uint16_t>(elements + 2 * i)} << 16);
  } else {
    const auto width = static_cast<std::size_t>(element_bytes(dtype));
    cast_elements(dtype, {elements, count * width}, DType::kFloat32,
                  std::as_writable_bytes(std::span(out, count)));
  }
}

/// Bits of the largest magnitude, which order as the magnitudes do.
std::int32_t largest_bits(const float* x, std::size_t count) {
  std::int32_t most = 0;
  for (std::size_t i = 0; i < count; ++i)
    most = std::max(most, std::bit_cast<std::int32_t>(x[i]) & kMagnitudeBits);
  return most;
}

float as_largest(std::int32_t bits) {
  if (bits >= kInfinityBits)
    fail(Code::kUnsupported, "it has NaN or Inf among its elements, which no scale fits",
         "leave it as it is: --quantize-tensor names the weights that are quantized");
  return std::bit_cast<float>(bits);
}

/// The code of a small float without Inf. Magnitudes above kLargest become that. Both ways are
/// computed for every number, so that it works in vectors.
template <int kSignBit, int kMantissa, int kBias>
TESSERA_INLINE std::int32_t rounded(float x, float largest) {
  constexpr int kShift = 23 - kMantissa;
  constexpr std::int32_t kFirstNormal = (128 - kBias) << 23;
  constexpr std::int32_t kUnits = (151 - kBias - kMantissa) << 23;
  const auto bits = std::bit_cast<std::int32_t>(x);
  const std::int32_t found = bits & kMagnitudeBits, most = std::bit_cast<std::int32_t>(largest);
  const std::int32_t magnitude = found < most ? found : most;
  const std::int32_t normal =
      (magnitude + ((1 << (kShift - 1)) - 1) + (magnitude >> kShift & 1) - ((127 - kBias) << 23)) >>
      kShift;
  // The last bit of what is added is the least that such a float can be.
  const std::int32_t small =
      std::bit_cast<std::int32_t>(std::bit_cast<float>(magnitude) + std::bit_cast<float>(kUnits)) -
      kUnits;
  const std::int32_t is_small = -static_cast<std::int32_t>(magnitude < kFirstNormal);
  const std::int32_t sign = (bits >> 31) & (1 << kSignBit);
  return sign | (small & is_small) | (normal & ~is_small);
}

TESSERA_INLINE std::int32_t e4m3(float x) { return rounded<7, 3, 7>(x, kLargestE4m3); }
TESSERA_INLINE std::int32_t e2m1(float x) { return rounded<3, 1, 1>(x, kLargestE2m1); }

// What is done with every number, in vectors as wide as the CPU has: the same results.
TESSERA_INLINE void encode_e4m3(const float* x, std::size_t count, float divisor, std::byte* out) {
  std::array<std::int32_t, kBand> codes;
  for (std::size_t i = 0; i < count; ++i) codes[i] = e4m3(x[i] / divisor);
  for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<std::byte>(codes[i]);
}
TESSERA_WIDE void encode_e4m3_wide(const float* x, std::size_t count, float divisor,
                                   std::byte* out) {
  encode_e4m3(x, count, divisor, out);
}

/// `zero` is added first: 0 makes zero of minus zero, minus zero leaves it.
template <std::int64_t kGroup>
TESSERA_INLINE void encode_e2m1(const float* x, float divisor, float zero, std::byte* out) {
  std::array<std::int32_t, kGroup> codes;
  for (std::size_t i = 0; i < kGroup; ++i) codes[i] = e2m1((x[i] + zero) / divisor);
  for (std::size_t i = 0; i < kGroup; ++i) out[i] = static_cast<std::byte>(codes[i]);
}
template <std::int64_t kGroup>
TESSERA_WIDE void encode_e2m1_wide(const float* x, float divisor, float zero, std::byte* out) {
  encode_e2m1<kGroup>(x, divisor, zero, out);
}

/// A scale as it is stored, and what the elements are divided by.
struct GroupScale {
  std::uint8_t code;
  float divisor;
};

GroupScale mx_scale(float largest) {
  const auto bits = std::bit_cast<std::uint32_t>(largest / kLargestE2m1);
  const std::uint32_t exponent = (bits + 0x7FFFFFU) >> 23;           // up, to a power of two
  if (exponent == 0) return {0, std::bit_cast<float>(0x00400000U)};  // 2^-127
  return {static_cast<std::uint8_t>(exponent), std::bit_cast<float>(exponent << 23)};
}

GroupScale nv_scale(float largest, float second) {
  static const CodeTable kNumbers = numbers_of(DType::kFloat8E4M3Fn);
  constexpr std::uint8_t kEighth = 0x20;
  auto code = static_cast<std::uint8_t>(e4m3(second * (largest / kLargestE2m1)));
  if (code == 0) code = kEighth;
  return {code, kNumbers[code] / second};
}

float fp8_scale(std::int32_t bits) {
  const float scale = as_largest(bits) / kLargestE4m3;
  return scale == 0 ? 1 : scale;
}

/// 4 bits: groups along the rows, which follow each other in the ravel as well.
template <std::int64_t kGroup>
class GroupRecipe : public ElementRecipe {
 public:
  explicit GroupRecipe(const BlockWeight& weight)
      : w_(weight), width_(element_bytes(weight.dtype)) {
    TESSERA_CHECK(weight.columns % kGroup == 0 && kFourBitTile % kGroup == 0);
  }

 protected:
  GroupScale scale(const float* group) const {
    const float largest = as_largest(largest_bits(group, kGroup));
    return w_.scheme == BlockScheme::kMxfp4 ? mx_scale(largest) : nv_scale(largest, w_.second);
  }

  /// Visits `elements` in whole groups: first element's place, numbers.
  template <class Visit>
  void for_each_tile(ByteView elements, const Visit& visit) const {
    std::array<float, kFourBitTile> numbers;
    const std::int64_t count = static_cast<std::int64_t>(elements.size()) / width_;
    for (std::int64_t at = 0; at < count; at += kFourBitTile) {
      const auto tile = static_cast<std::size_t>(std::min(kFourBitTile, count - at));
      widen(w_.dtype, elements.data() + at * width_, tile, numbers.data());
      visit(at, std::span<const float>(numbers.data(), tile));
    }
  }

  BlockWeight w_;
  std::int64_t width_;
};

template <std::int64_t kGroup>
class GroupCodes final : public GroupRecipe<kGroup> {
 public:
  using GroupRecipe<kGroup>::GroupRecipe;
  std::int64_t at_once() const override { return kElementsAtOnce / 2; }

  std::vector<ElementRuns> needs(std::int64_t begin, std::int64_t end) const override {
    const std::int64_t first = 2 * begin / kGroup * kGroup;
    return {{first, ceil_div(2 * end, kGroup) * kGroup - first}};
  }

  void compute(std::int64_t begin, std::int64_t end, std::span<const ByteView> parts,
               MutableBytes out) const override {
    const std::int64_t first = 2 * begin / kGroup * kGroup / 2;  // byte of the first group
    std::array<std::byte, kFourBitTile / 2> bytes;
    this->for_each_tile(parts[0], [&](std::int64_t at, std::span<const float> numbers) {
      encode(numbers, bytes.data());
      const std::int64_t byte = first + at / 2;
      const std::int64_t from = std::max(begin, byte);
      const std::int64_t to = std::min(end, byte + static_cast<std::int64_t>(numbers.size()) / 2);
      if (from < to)
        std::copy_n(bytes.data() + (from - byte), to - from, out.data() + (from - begin));
    });
  }

 private:
  void encode(std::span<const float> numbers, std::byte* out) const {
    const bool wide = has_wide_vectors();
    std::array<std::byte, kFourBitTile> narrow;
    for (std::size_t g = 0; g < numbers.size(); g += kGroup) {
      const float divisor = this->scale(numbers.data() + g).divisor;
      // compressed-tensors has no minus zero for one; torchao and GPT-OSS do.
      const float zero = this->w_.scheme == BlockScheme::kNvfp4 ? 0.0F : -0.0F;
      wide ? encode_e2m1_wide<kGroup>(numbers.data() + g, divisor, zero, narrow.data() + g)
           : encode_e2m1<kGroup>(numbers.data() + g, divisor, zero, narrow.data() + g);
    }
    for (std::size_t i = 0; i < numbers.size() / 2; ++i) {
      const auto pair = load_le<std::uint16_t>(narrow.data() + 2 * i);
      out[i] = static_cast<std::byte>(pair | pair >> 4);
    }
  }
};

template <std::int64_t kGroup>
class GroupScales final : public GroupRecipe<kGroup> {
 public:
  using GroupRecipe<kGroup>::GroupRecipe;
  std::int64_t at_once() const override { return kElementsAtOnce / kGroup; }

  std::vector<ElementRuns> needs(std::int64_t begin, std::int64_t end) const override {
    return {{begin * kGroup, (end - begin) * kGroup}};
  }

  void compute(std::int64_t /*begin*/, std::int64_t /*end*/, std::span<const ByteView> parts,
               MutableBytes out) const override {
    this->for_each_tile(parts[0], [&](std::int64_t at, std::span<const float> numbers) {
      for (std::size_t g = 0; g < numbers.size(); g += kGroup)
        out[(static_cast<std::size_t>(at) + g) / kGroup] =
            std::byte{this->scale(numbers.data() + g).code};
    });
  }
};

/// fp8: bands of rows that share the blocks of their columns.
class BandRecipe : public ElementRecipe {
 public:
  explicit BandRecipe(const BlockWeight& weight)
      : w_(weight), blocks_(ceil_div(weight.columns, kBand)), width_(element_bytes(weight.dtype)) {}

 protected:
  ElementRuns bands(std::int64_t first, std::int64_t last) const {
    const std::int64_t begin = first * kBand, end = std::min(w_.rows, (last + 1) * kBand);
    return {begin * w_.columns, (end - begin) * w_.columns};
  }
  std::int64_t bands_at_once() const {
    return std::max<std::int64_t>(1, kElementsAtOnce / (kBand * w_.columns));
  }

  /// Visits the blocks of a row: block, first column, numbers.
  template <class Visit>
  void for_each_block(const std::byte* row, const Visit& visit) const {
    std::array<float, kBand> numbers;
    for (std::int64_t b = 0; b < blocks_; ++b) {
      const std::int64_t column = b * kBand, count = std::min(kBand, w_.columns - column);
      widen(w_.dtype, row + column * width_, static_cast<std::size_t>(count), numbers.data());
      visit(static_cast<std::size_t>(b), column,
            std::span(numbers.data(), static_cast<std::size_t>(count)));
    }
  }

  /// The scales of the band that begins at `row`, as `elements` do.
  std::vector<float> scales(const std::byte* elements, std::int64_t row) const {
    std::vector<std::int32_t> most(static_cast<std::size_t>(blocks_));
    for (std::int64_t r = row; r < std::min(w_.rows, row + kBand); ++r) {
      for_each_block(elements, [&](std::size_t b, std::int64_t, std::span<const float> numbers) {
        most[b] = std::max(most[b], largest_bits(numbers.data(), numbers.size()));
      });
      elements += w_.columns * width_;
    }
    std::vector<float> scales(most.size());
    std::ranges::transform(most, scales.begin(), fp8_scale);
    return scales;
  }

  BlockWeight w_;
  std::int64_t blocks_, width_;
};

class BandCodes final : public BandRecipe {
 public:
  using BandRecipe::BandRecipe;
  std::int64_t at_once() const override { return bands_at_once() * kBand * w_.columns; }

  std::vector<ElementRuns> needs(std::int64_t begin, std::int64_t end) const override {
    return {bands(begin / w_.columns / kBand, (end - 1) / w_.columns / kBand)};
  }

  void compute(std::int64_t begin, std::int64_t end, std::span<const ByteView> parts,
               MutableBytes out) const override {
    if (begin == end) return;
    const bool wide = has_wide_vectors();
    const std::int64_t last_row = (end - 1) / w_.columns;
    const std::byte* elements = parts[0].data();
    for (std::int64_t band = begin / w_.columns / kBand * kBand; band <= last_row; band += kBand) {
      const std::vector<float> scale = scales(elements, band);
      const std::int64_t stop = std::min(w_.rows, band + kBand);
      for (std::int64_t row = band; row < stop; ++row, elements += w_.columns * width_) {
        const std::int64_t start = row * w_.columns;  // in the ravel
        if (start + w_.columns <= begin || start >= end) continue;
        for_each_block(elements, [&](std::size_t b, std::int64_t column, std::span<const float> x) {
          const float divisor = scale[b];
          std::array<std::byte, kBand> codes;
          wide ? encode_e4m3_wide(x.data(), x.size(), divisor, codes.data())
               : encode_e4m3(x.data(), x.size(), divisor, codes.data());
          const std::int64_t at = start + column;
          const std::int64_t from = std::max(begin, at);
          const std::int64_t to = std::min(end, at + static_cast<std::int64_t>(x.size()));
          if (from < to)
            std::copy_n(codes.data() + (from - at), to - from, out.data() + (from - begin));
        });
      }
    }
  }
};

class BandScales final : public BandRecipe {
 public:
  using BandRecipe::BandRecipe;
  std::int64_t at_once() const override { return bands_at_once() * blocks_; }

  std::vector<ElementRuns> needs(std::int64_t begin, std::int64_t end) const override {
    return {bands(begin / blocks_, (end - 1) / blocks_)};
  }

  void compute(std::int64_t begin, std::int64_t end, std::span<const ByteView> parts,
               MutableBytes out) const override {
    if (begin == end) return;
    const std::byte* elements = parts[0].data();
    for (std::int64_t band = begin / blocks_; band <= (end - 1) / blocks_; ++band) {
      const std::vector<float> scale = scales(elements, band * kBand);
      elements += kBand * w_.columns * width_;
      const std::int64_t at = band * blocks_;
      const std::int64_t from = std::max(begin, at), to = std::min(end, at + blocks_);
      const auto bytes = std::as_bytes(std::span(scale));
      std::copy_n(bytes.data() + (from - at) * 4, (to - from) * 4, out.data() + (from - begin) * 4);
    }
  }
};

}  // namespace

std::int64_t block_columns(BlockScheme scheme) {
  switch (scheme) {
    case BlockScheme::kFp8:
      return kBand;
    case BlockScheme::kMxfp4:
      return kMxGroup;
    case BlockScheme::kNvfp4:
      return kNvGroup;
  }
  return 1;
}

bool can_be_quantized(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kBFloat16 || dtype == DType::kFloat16;
}

std::shared_ptr<const ElementRecipe> block_codes(const BlockWeight& weight) {
  if (weight.scheme == BlockScheme::kFp8) return std::make_shared<BandCodes>(weight);
  if (weight.scheme == BlockScheme::kMxfp4) return std::make_shared<GroupCodes<kMxGroup>>(weight);
  return std::make_shared<GroupCodes<kNvGroup>>(weight);
}

std::shared_ptr<const ElementRecipe> block_scales(const BlockWeight& weight) {
  if (weight.scheme == BlockScheme::kFp8) return std::make_shared<BandScales>(weight);
  if (weight.scheme == BlockScheme::kMxfp4) return std::make_shared<GroupScales<kMxGroup>>(weight);
  return std::make_shared<GroupScales<kNvGroup>>(weight);
}

float largest_magnitude(DType dtype, ByteView elements) {
  std::array<float, kFourBitTile> numbers;
  const auto width = static_cast<std::size_t>(element_bytes(dtype));
  std::int32_t most = 0;
  for (std::size_t at = 0; at < elements.size(); at += numbers.size() * width) {
    const std::size_t count = std::min(numbers.size(), (elements.size() - at) / width);
    widen(dtype, elements.data() + at, count, numbers.data());
    most = std::max(most, largest_bits(numbers.data(), count));
  }
  return as_largest(most);
}

float second_scale(float largest) {
  const float second =
      kLargestE4m3 * kLargestE2m1 / std::max(largest, std::numeric_limits<float>::min());
  return second <= std::numeric_limits<float>::max() ? second : 1;
}

}  // namespace tessera

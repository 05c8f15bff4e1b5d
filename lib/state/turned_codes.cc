#include "lib/state/turned_codes.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/tensor/cast.h>

#include <algorithm>
#include <array>

namespace tessera {
namespace {

constexpr std::int64_t kTurnedAtOnce = std::int64_t{1} << 20;  // elements
/// Codes of an output lie apart, those of neighbouring outputs beside each other: fewer outputs at
/// once are many short reads. So many are computed together even where they are more elements.
constexpr std::int64_t kOutputsAtOnce = 256;
constexpr std::int64_t kMostTurnedAtOnce = std::int64_t{8} << 20;
constexpr std::int64_t kTile = 64;  // outputs or inputs at once

/// Where AWQ keeps output i of every eight in a word.
constexpr std::array<unsigned, 8> kAwqPlace = {0, 4, 1, 5, 2, 6, 3, 7};

class TurnedCodes final : public ElementRecipe {
 public:
  explicit TurnedCodes(const TurnedWeight& weight)
      : w_(weight),
        per_(32 / weight.bits),
        mask_((1U << static_cast<unsigned>(weight.bits)) - 1),
        is_awq_(weight.packing == TurnedWeight::Packing::kAlongOutputs) {}

  std::int64_t at_once() const override {
    const std::int64_t outputs =
        std::clamp(kOutputsAtOnce, kTurnedAtOnce / w_.inputs, kMostTurnedAtOnce / w_.inputs);
    return std::max<std::int64_t>(1, outputs / per_) * per_ * w_.inputs;
  }

  std::vector<ElementRuns> needs(std::int64_t begin, std::int64_t end) const override {
    const Outputs of = outputs(begin, end);
    const ElementRuns words{of.word, of.words, w_.outputs / per_, 0};
    const ElementRuns each{of.first, of.count, w_.outputs, 0};
    const auto times = [](ElementRuns runs, std::int64_t repeats) {
      runs.repeats = repeats;
      return runs;
    };
    std::vector<ElementRuns> needs;
    needs.push_back(is_awq_ ? times(words, w_.inputs) : times(each, w_.inputs / per_));
    needs.push_back(times(each, w_.groups));
    if (w_.has_zeros) needs.push_back(times(words, w_.groups));
    if (w_.grouped_inputs) needs.push_back({0, w_.inputs});
    return needs;
  }

  void compute(std::int64_t begin, std::int64_t end, std::span<const ByteView> parts,
               MutableBytes out) const override {
    if (begin == end) return;
    const Outputs of = outputs(begin, end);
    Read read;
    read.codes = parts[0];
    read.scales.resize(static_cast<std::size_t>(w_.groups * of.count));
    cast_elements(w_.scale_dtype, parts[1], DType::kFloat32,
                  std::as_writable_bytes(std::span(read.scales)));
    read.zeros = zeros(of, w_.has_zeros ? parts[2] : ByteView());
    read.group = groups(w_.grouped_inputs ? parts[w_.has_zeros ? 3 : 2] : ByteView());
    auto* numbers = reinterpret_cast<float*>(out.data());
    const bool whole = begin == of.first * w_.inputs && end == (of.first + of.count) * w_.inputs;
    if (whole) return fill(of, read, numbers);
    std::vector<float> rows(static_cast<std::size_t>(of.count * w_.inputs));
    fill(of, read, rows.data());
    std::copy_n(rows.data() + (begin - of.first * w_.inputs), end - begin, numbers);
  }

 private:
  struct Outputs {
    std::int64_t first, count;  // rows of the weight
    std::int64_t word, words;   // that hold them side by side
  };
  struct Read {
    ByteView codes;
    std::vector<float> scales, zeros;  // [group][output]
    std::vector<std::int32_t> group;   // by input
  };

  Outputs outputs(std::int64_t begin, std::int64_t end) const {
    Outputs of{};
    of.first = begin / w_.inputs;
    of.count = (end - 1) / w_.inputs - of.first + 1;
    of.word = of.first / per_;
    of.words = (of.first + of.count - 1) / per_ - of.word + 1;
    return of;
  }

  std::uint32_t code(std::uint32_t word, std::int64_t place) const {
    const unsigned at =
        is_awq_ ? kAwqPlace[static_cast<std::size_t>(place)] : static_cast<unsigned>(place);
    return (word >> (at * static_cast<unsigned>(w_.bits))) & mask_;
  }

  std::vector<float> zeros(const Outputs& of, ByteView words) const {
    std::vector<float> out(static_cast<std::size_t>(w_.groups * of.count),
                           static_cast<float>(1U << static_cast<unsigned>(w_.bits - 1)));
    if (!w_.has_zeros) return out;
    for (std::int64_t g = 0; g < w_.groups; ++g) {
      for (std::int64_t o = 0; o < of.count; ++o) {
        const std::int64_t output = of.first + o;
        const std::int64_t word = g * of.words + output / per_ - of.word;
        const std::uint32_t stored =
            code(load_le<std::uint32_t>(words.data() + 4 * word), output % per_);
        out[static_cast<std::size_t>(g * of.count + o)] =
            static_cast<float>((stored + static_cast<std::uint32_t>(w_.zero_bias)) & mask_);
      }
    }
    return out;
  }

  std::vector<std::int32_t> groups(ByteView stored) const {
    std::vector<std::int32_t> out(static_cast<std::size_t>(w_.inputs));
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] = w_.grouped_inputs
                   ? load_le<std::int32_t>(stored.data() + 4 * i)
                   : static_cast<std::int32_t>(static_cast<std::int64_t>(i) / w_.group_size);
      if (out[i] < 0) out[i] += static_cast<std::int32_t>(w_.groups);  // as Python counts
      if (out[i] < 0 || out[i] >= w_.groups)
        fail(Code::kCorrupt,
             fmt::format("input {} is said to be of a group that is none of the {}", i, w_.groups));
    }
    return out;
  }

  void fill(const Outputs& of, const Read& read, float* out) const {
    if (is_awq_) return fill_awq(of, read, out);
    if (w_.bits == 2) return fill_gptq<2>(of, read, out);
    w_.bits == 4 ? fill_gptq<4>(of, read, out) : fill_gptq<8>(of, read, out);
  }

  float number(const Outputs& of, const Read& read, std::int64_t input, std::int64_t o,
               std::uint32_t code) const {
    const auto at =
        static_cast<std::size_t>(read.group[static_cast<std::size_t>(input)] * of.count + o);
    return (static_cast<float>(code) - read.zeros[at]) * read.scales[at];
  }

  template <unsigned kBits>
  void fill_gptq(const Outputs& of, const Read& read, float* out) const {
    constexpr unsigned kPer = 32 / kBits;
    constexpr std::uint32_t kMask = (1U << kBits) - 1;
    for (std::int64_t tile = 0; tile < of.count; tile += kTile) {
      const std::int64_t last = std::min(of.count, tile + kTile);
      for (std::int64_t row = 0; row < w_.inputs / per_; ++row) {
        const std::int32_t* group = read.group.data() + row * per_;
        const bool one_group =
            std::all_of(group, group + per_, [group](std::int32_t g) { return g == *group; });
        for (std::int64_t o = tile; o < last; ++o) {
          const auto word = load_le<std::uint32_t>(read.codes.data() + 4 * (row * of.count + o));
          float* to = out + o * w_.inputs + row * per_;
          if (one_group) {
            const auto at = static_cast<std::size_t>(*group * of.count + o);
            const float zero = read.zeros[at], scale = read.scales[at];
            std::array<std::int32_t, kPer> codes;
            for (unsigned k = 0; k < kPer; ++k)
              codes[k] = static_cast<std::int32_t>(word >> (k * kBits) & kMask);
            for (unsigned k = 0; k < kPer; ++k)
              to[k] = (static_cast<float>(codes[k]) - zero) * scale;
            continue;
          }
          for (std::int64_t k = 0; k < per_; ++k)
            to[k] = number(of, read, row * per_ + k, o, code(word, k));
        }
      }
    }
  }

  using AwqRows = std::array<std::array<float, kTile>, 8>;

  /// Element `i` of the rows of a word's eight outputs.
  static void fill_word(std::uint32_t word, const float* zeros, const float* scales, AwqRows& rows,
                        std::size_t i) {
    std::array<std::int32_t, 8> codes;
    for (std::size_t k = 0; k < 8; ++k)
      codes[k] = static_cast<std::int32_t>(word >> (4 * kAwqPlace[k]) & 15U);
    std::array<float, 8> numbers;
    for (std::size_t k = 0; k < 8; ++k)
      numbers[k] = (static_cast<float>(codes[k]) - zeros[k]) * scales[k];
    for (std::size_t k = 0; k < 8; ++k) rows[k][i] = numbers[k];
  }

  /// Each word once, for its eight outputs.
  void fill_awq(const Outputs& of, const Read& read, float* out) const {
    AwqRows rows;
    const std::int64_t before = of.word * per_ - of.first;  // of the first word's first output
    for (std::int64_t tile = 0; tile < w_.inputs; tile += kTile) {
      const std::int64_t count = std::min(w_.inputs - tile, kTile);
      for (std::int64_t word = 0; word < of.words; ++word) {
        const std::int64_t output = before + word * per_;
        const std::int64_t first = std::max<std::int64_t>(0, -output);
        const std::int64_t last = std::min(per_, of.count - output);
        for (std::int64_t i = 0; i < count; ++i) {
          const auto codes =
              load_le<std::uint32_t>(read.codes.data() + 4 * ((tile + i) * of.words + word));
          const auto at = static_cast<std::size_t>(
              read.group[static_cast<std::size_t>(tile + i)] * of.count + output + first);
          if (last - first == 8) {
            fill_word(codes, read.zeros.data() + at, read.scales.data() + at, rows,
                      static_cast<std::size_t>(i));
            continue;
          }
          for (std::int64_t k = first; k < last; ++k)
            rows[static_cast<std::size_t>(k)][static_cast<std::size_t>(i)] =
                (static_cast<float>(code(codes, k)) -
                 read.zeros[at + static_cast<std::size_t>(k - first)]) *
                read.scales[at + static_cast<std::size_t>(k - first)];
        }
        for (std::int64_t k = first; k < last; ++k)
          std::copy_n(rows[static_cast<std::size_t>(k)].data(), count,
                      out + (output + k) * w_.inputs + tile);
      }
    }
  }

  TurnedWeight w_;
  std::int64_t per_;
  std::uint32_t mask_;
  bool is_awq_;
};

}  // namespace

std::shared_ptr<const ElementRecipe> turned_codes(const TurnedWeight& weight) {
  return std::make_shared<TurnedCodes>(weight);
}

}  // namespace tessera

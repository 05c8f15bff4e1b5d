#include "lib/state/turned_codes.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/tensor/cast.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "lib/base/cpu.h"
#include "lib/state/windowed_recipe.h"

namespace tessera {
namespace {

constexpr std::int64_t kTurnedAtOnce = std::int64_t{1} << 20;  // elements
constexpr std::int64_t kTile = 64;                             // inputs at once
constexpr std::int64_t kWords = 16;  // neighbouring words: a line of the cache

/// Where AWQ keeps output i of every eight in a word.
constexpr std::array<unsigned, 8> kAwqPlace = {0, 4, 1, 5, 2, 6, 3, 7};

class TurnedCodes final : public WindowedRecipe {
 public:
  explicit TurnedCodes(const TurnedWeight& weight)
      : w_(weight),
        per_(32 / weight.bits),
        mask_((1U << static_cast<unsigned>(weight.bits)) - 1),
        is_awq_(weight.packing == TurnedWeight::Packing::kAlongOutputs) {}

  std::int64_t at_once() const override { return block() * w_.inputs; }

  /// Codes of an output lie apart, those of neighbouring outputs beside each other: the more outputs
  /// are read together, the longer are the runs.
  ElementRange read_window(std::int64_t begin, std::uint64_t most_bytes) const override {
    const auto codes = static_cast<std::int64_t>(most_bytes * 8) / w_.bits;
    const std::int64_t outputs = std::max<std::int64_t>(1, codes / at_once()) * block();
    const std::int64_t first = begin / w_.inputs / outputs * outputs;
    return {first * w_.inputs, std::min(w_.outputs, first + outputs) * w_.inputs};
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
    compute_within({begin, end}, begin, end, parts, out);
  }

  void compute_within(ElementRange window, std::int64_t begin, std::int64_t end,
                      std::span<const ByteView> parts, MutableBytes out) const override {
    if (begin == end) return;
    const Outputs of = outputs(begin, end);
    Read read{.held = outputs(window.begin, window.end)};
    read.codes = parts[0];
    read.scales = scales(of, read.held, parts[1]);
    read.zeros = zeros(of, read.held, w_.has_zeros ? parts[2] : ByteView());
    read.group = groups(w_.grouped_inputs ? parts[w_.has_zeros ? 3 : 2] : ByteView());
    read.has_even_groups = !w_.grouped_inputs && w_.group_size % per_ == 0;
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
    Outputs held;                          // whose codes are here
    ByteView codes = {};                   // of these
    std::vector<float> scales = {};        // [group][output], of those that are computed
    std::vector<float> zeros = {};         // the same
    std::vector<std::int32_t> group = {};  // by input
    bool has_even_groups = false;          // a word's inputs are of one group, all of them
  };

  /// Outputs at once, in whole words.
  std::int64_t block() const {
    return std::max<std::int64_t>(1, kTurnedAtOnce / w_.inputs / per_) * per_;
  }

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

  std::vector<float> scales(const Outputs& of, const Outputs& held, ByteView stored) const {
    std::vector<float> out(static_cast<std::size_t>(w_.groups * of.count));
    const auto es = static_cast<std::size_t>(element_bytes(w_.scale_dtype));
    const auto count = static_cast<std::size_t>(of.count);
    for (std::int64_t g = 0; g < w_.groups; ++g) {
      const auto from = static_cast<std::size_t>(g * held.count + of.first - held.first);
      cast_elements(w_.scale_dtype, stored.subspan(from * es, count * es), DType::kFloat32,
                    std::as_writable_bytes(
                        std::span(out).subspan(static_cast<std::size_t>(g) * count, count)));
    }
    return out;
  }

  std::vector<float> zeros(const Outputs& of, const Outputs& held, ByteView words) const {
    std::vector<float> out(static_cast<std::size_t>(w_.groups * of.count),
                           static_cast<float>(1U << static_cast<unsigned>(w_.bits - 1)));
    if (!w_.has_zeros) return out;
    for (std::int64_t g = 0; g < w_.groups; ++g) {
      for (std::int64_t o = 0; o < of.count; ++o) {
        const std::int64_t output = of.first + o;
        const std::int64_t word = g * held.words + output / per_ - held.word;
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
    if (has_wide_vectors()) return fill_wide(of, read, out);
    fill_any(of, read, out);
  }
  TESSERA_WIDE void fill_wide(const Outputs& of, const Read& read, float* out) const {
    fill_any(of, read, out);
  }
  TESSERA_INLINE void fill_any(const Outputs& of, const Read& read, float* out) const {
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

  /// Words of kWords neighbouring columns in `rows` rows, side by side: in place they lie a power of
  /// two apart, which a cache has few places for.
  using Words = std::array<std::array<std::uint32_t, kWords>, kTile>;
  static TESSERA_INLINE void take(const std::byte* from, std::int64_t step, std::int64_t rows,
                                  std::int64_t columns, Words& words) {
    for (std::int64_t r = 0; r < rows; ++r)
      std::memcpy(words[static_cast<std::size_t>(r)].data(), from + 4 * r * step,
                  static_cast<std::size_t>(4 * columns));
  }

  template <unsigned kBits>
  TESSERA_INLINE void fill_gptq(const Outputs& of, const Read& read, float* out) const {
    constexpr unsigned kPer = 32 / kBits;
    constexpr std::uint32_t kMask = (1U << kBits) - 1;
    const std::int64_t rows = w_.inputs / per_;
    const std::byte* held = read.codes.data() + 4 * (of.first - read.held.first);
    Words words;
    for (std::int64_t tile = 0; tile < of.count; tile += kWords) {
      const std::int64_t columns = std::min(of.count - tile, kWords);
      for (std::int64_t first = 0; first < rows; first += kWords) {
        const std::int64_t count = std::min(rows - first, kWords);
        take(held + 4 * (first * read.held.count + tile), read.held.count, count, columns, words);
        for (std::int64_t o = 0; o < columns; ++o) {
          float* to = out + (tile + o) * w_.inputs + first * per_;
          for (std::int64_t r = 0; r < count; ++r, to += kPer) {
            const std::uint32_t word =
                words[static_cast<std::size_t>(r)][static_cast<std::size_t>(o)];
            const std::int32_t* group = read.group.data() + (first + r) * per_;
            const bool one_group =
                read.has_even_groups ||
                std::all_of(group, group + per_, [group](std::int32_t g) { return g == *group; });
            if (one_group) {
              const auto at = static_cast<std::size_t>(*group * of.count + tile + o);
              const float zero = read.zeros[at], scale = read.scales[at];
              for (unsigned k = 0; k < kPer; ++k)
                to[k] =
                    (static_cast<float>(static_cast<std::int32_t>(word >> (k * kBits) & kMask)) -
                     zero) *
                    scale;
              continue;
            }
            for (std::int64_t k = 0; k < per_; ++k)
              to[k] = number(of, read, (first + r) * per_ + k, tile + o, code(word, k));
          }
        }
      }
    }
  }

  using AwqRows = std::array<std::array<float, kTile>, 8>;

  /// Element `i` of the rows of a word's eight outputs.
  static TESSERA_INLINE void fill_word(std::uint32_t word, const float* zeros, const float* scales,
                                       AwqRows& rows, std::size_t i) {
    std::array<float, 8> numbers;
    for (std::size_t k = 0; k < 8; ++k)
      numbers[k] =
          (static_cast<float>(static_cast<std::int32_t>(word >> (4 * kAwqPlace[k]) & 15U)) -
           zeros[k]) *
          scales[k];
    for (std::size_t k = 0; k < 8; ++k) rows[k][i] = numbers[k];
  }

  /// The eight outputs of one word in each of `count` inputs of one group.
  TESSERA_INLINE void fill_columns(const Words& words, std::int64_t column, std::int64_t count,
                                   const float* zeros, const float* scales, float* out) const {
    std::array<std::uint32_t, kTile> codes;
    for (std::int64_t i = 0; i < count; ++i)
      codes[static_cast<std::size_t>(i)] =
          words[static_cast<std::size_t>(i)][static_cast<std::size_t>(column)];
    for (std::size_t k = 0; k < 8; ++k, out += w_.inputs) {
      const unsigned shift = 4 * kAwqPlace[k];
      const float zero = zeros[k], scale = scales[k];
      for (std::int64_t i = 0; i < count; ++i)
        out[i] = (static_cast<float>(static_cast<std::int32_t>(
                      codes[static_cast<std::size_t>(i)] >> shift & 15U)) -
                  zero) *
                 scale;
    }
  }

  /// Each word once, for its eight outputs.
  TESSERA_INLINE void fill_awq(const Outputs& of, const Read& read, float* out) const {
    AwqRows rows;
    Words words;
    const std::int64_t before = of.word * per_ - of.first;  // of the first word's first output
    const std::byte* held = read.codes.data() + 4 * (of.word - read.held.word);
    for (std::int64_t tile = 0; tile < w_.inputs; tile += kTile) {
      const std::int64_t count = std::min(w_.inputs - tile, kTile);
      const std::int32_t* group = read.group.data() + tile;
      const bool one_group =
          std::all_of(group, group + count, [group](std::int32_t g) { return g == *group; });
      for (std::int64_t word = 0; word < of.words; ++word) {
        const std::int64_t column = word % kWords;
        if (column == 0)
          take(held + 4 * (tile * read.held.words + word), read.held.words, count,
               std::min(of.words - word, kWords), words);
        const std::int64_t output = before + word * per_;
        const std::int64_t first = std::max<std::int64_t>(0, -output);
        const std::int64_t last = std::min(per_, of.count - output);
        if (one_group && last - first == 8) {
          const auto at = static_cast<std::size_t>(group[0] * of.count + output);
          fill_columns(words, column, count, read.zeros.data() + at, read.scales.data() + at,
                       out + output * w_.inputs + tile);
          continue;
        }
        for (std::int64_t i = 0; i < count; ++i) {
          const std::uint32_t codes =
              words[static_cast<std::size_t>(i)][static_cast<std::size_t>(column)];
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

#include "lib/state/scaled_codes.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/tensor/cast.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace tessera {
namespace {

constexpr std::int64_t kScaledAtOnce = std::int64_t{1} << 16;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<float> as_floats(DType dtype, ByteView bytes) {
  std::vector<float> out(bytes.size() / static_cast<std::size_t>(element_bytes(dtype)));
  cast_elements(dtype, bytes, DType::kFloat32, std::as_writable_bytes(std::span(out)));
  return out;
}

/// 2^(e - 127). 2^128 is no float: Inf stands for it.
float power_of_two(std::uint8_t exponent) {
  if (exponent == 0) return std::bit_cast<float>(0x00400000U);
  if (exponent == 255) return kInfinity;
  return std::bit_cast<float>(static_cast<std::uint32_t>(exponent) << 23);
}

class ScaledCodes final : public ElementRecipe {
 public:
  explicit ScaledCodes(const ScaledWeight& weight)
      : w_(weight),
        units_per_row_((weight.columns + weight.codes.per_unit() - 1) / weight.codes.per_unit()),
        unit_bytes_(weight.codes.form == CodeForm::kWords ? 4 : element_bytes(weight.codes.dtype)),
        fixed_(weight.codes, fixed_table(weight)) {
    TESSERA_CHECK(weight.rows > 0 && weight.columns > 0 && weight.block_rows > 0 &&
                  weight.block_columns > 0);
  }

  std::int64_t at_once() const override { return kScaledAtOnce; }

  std::vector<ElementRuns> needs(std::int64_t begin, std::int64_t end) const override {
    const Range range = range_of(begin, end);
    std::vector<ElementRuns> needs;
    needs.push_back({range.first_unit, range.last_unit - range.first_unit + 1});
    needs.push_back({range.first_scale, range.scales});
    if (w_.second != ScaledWeight::Second::kNone) needs.push_back({0, w_.second_numel});
    if (w_.zeros == ScaledWeight::Zeros::kElements)
      needs.push_back({range.first_scale, range.scales});
    if (w_.zeros == ScaledWeight::Zeros::kWords)
      needs.push_back(zero_words(range.first_row, range.last_row));
    if (w_.grouped_columns) needs.push_back({0, w_.columns});
    if (w_.numbers == ScaledWeight::Numbers::kTable) needs.push_back({0, w_.table_numel});
    if (w_.nested) {
      const std::int64_t first = range.first_scale / w_.nested->block;
      const std::int64_t last = (range.first_scale + range.scales - 1) / w_.nested->block;
      needs.push_back({first, last - first + 1});
      needs.push_back({0, w_.nested->table_numel});
    }
    return needs;
  }

  void compute(std::int64_t begin, std::int64_t end, std::span<const ByteView> parts,
               MutableBytes out) const override {
    if (begin == end) return;
    const Range range = range_of(begin, end);
    const Read read = decode(range, parts);
    std::optional<CodeReader> by_table;
    if (w_.numbers == ScaledWeight::Numbers::kTable) by_table.emplace(w_.codes, read.table);
    const CodeReader& codes = by_table ? *by_table : fixed_;
    std::span<float> numbers(reinterpret_cast<float*>(out.data()), out.size() / sizeof(float));
    std::size_t done = 0;
    for (std::int64_t row = range.first_row; row <= range.last_row; ++row) {
      const std::int64_t from = row == range.first_row ? begin - row * w_.columns : 0;
      const std::int64_t to = row == range.last_row ? end - row * w_.columns : w_.columns;
      const std::span<float> piece = numbers.subspan(done, static_cast<std::size_t>(to - from));
      const std::int64_t per = w_.codes.per_unit();
      const std::int64_t unit = row * units_per_row_ + from / per - range.first_unit;
      codes.read(parts[0].data() + unit * unit_bytes_, from % per, piece);
      scale_row(row, from, to, range, read, piece);
      done += piece.size();
    }
    finish(numbers);
  }

 private:
  struct Range {
    std::int64_t first_row, last_row, first_unit, last_unit, first_scale, scales;
  };
  struct Read {
    std::vector<float> scales, zeros;  // from Range::first_scale on
    std::vector<std::int32_t> groups;  // by column
    CodeTable table{};
    ByteView zero_words;
  };

  static CodeTable fixed_table(const ScaledWeight& weight) {
    if (weight.numbers == ScaledWeight::Numbers::kE2m1) return e2m1_numbers();
    const bool byte = weight.codes.form == CodeForm::kElements && bits(weight.codes.dtype) == 8;
    return byte && weight.numbers == ScaledWeight::Numbers::kOwn ? numbers_of(weight.codes.dtype)
                                                                 : CodeTable{};
  }

  /// Where the first scale of a row is.
  std::int64_t scale_at(std::int64_t row) const {
    const std::int64_t matrix = w_.scales_per_matrix ? row / w_.rows : 0;
    return (matrix * w_.scale_rows + row % w_.rows / w_.block_rows) * w_.scale_columns;
  }

  Range range_of(std::int64_t begin, std::int64_t end) const {
    const std::int64_t per = w_.codes.per_unit(), last = end - 1;
    Range range{};
    range.first_row = begin / w_.columns;
    range.last_row = last / w_.columns;
    range.first_unit = range.first_row * units_per_row_ + begin % w_.columns / per;
    range.last_unit = range.last_row * units_per_row_ + last % w_.columns / per;
    std::int64_t first = scale_at(range.first_row), highest = scale_at(range.last_row);
    if (range.first_row / w_.rows != range.last_row / w_.rows && !w_.scales_per_matrix) {
      first = 0;  // the next matrix begins with the first of the same scales
      highest = (w_.scale_rows - 1) * w_.scale_columns;
    }
    range.first_scale = first;
    range.scales = highest + w_.scale_columns - first;
    if (range.first_row == range.last_row && w_.scale_columns > 1 && !w_.grouped_columns) {
      range.first_scale += begin % w_.columns / w_.block_columns;
      range.scales =
          last % w_.columns / w_.block_columns - begin % w_.columns / w_.block_columns + 1;
    }
    return range;
  }

  ElementRuns zero_words(std::int64_t first_row, std::int64_t last_row) const {
    const std::int64_t per = w_.codes.per_unit(), first = first_row / per, last = last_row / per;
    return {first * w_.scale_columns, (last - first + 1) * w_.scale_columns};
  }

  Read decode(const Range& range, std::span<const ByteView> parts) const {
    Read read;
    std::size_t next = 1;
    const ByteView scales = parts[next++];
    if (!w_.nested) read.scales = plain_scales(scales);
    if (w_.second != ScaledWeight::Second::kNone)
      take_second(range, as_floats(DType::kFloat32, parts[next++]), read.scales);
    if (w_.zeros == ScaledWeight::Zeros::kElements)
      read.zeros = as_floats(w_.zero_dtype, parts[next++]);
    if (w_.zeros == ScaledWeight::Zeros::kWords) read.zero_words = parts[next++];
    if (w_.grouped_columns) read.groups = groups(parts[next++]);
    if (w_.numbers == ScaledWeight::Numbers::kTable) {
      const std::vector<float> table = as_floats(DType::kFloat32, parts[next++]);
      std::copy_n(table.begin(), std::min(table.size(), read.table.size()), read.table.begin());
    }
    if (w_.nested) {
      const std::vector<float> outer = as_floats(DType::kFloat32, parts[next]);
      const std::vector<float> table = as_floats(DType::kFloat32, parts[next + 1]);
      const std::int64_t first_block = range.first_scale / w_.nested->block;
      read.scales.resize(scales.size());
      for (std::size_t i = 0; i < scales.size(); ++i) {
        const auto code = static_cast<std::size_t>(scales[i]);
        if (code >= table.size()) fail(Code::kCorrupt, "a scale's code is outside of its table");
        const std::int64_t block =
            (range.first_scale + static_cast<std::int64_t>(i)) / w_.nested->block - first_block;
        // Two roundings, as the library's own: no fused multiplication and addition.
        read.scales[i] = table[code] * outer[static_cast<std::size_t>(block)];
        read.scales[i] += w_.nested->offset;
      }
    }
    return read;
  }

  std::vector<float> plain_scales(ByteView bytes) const {
    if (!w_.exponents) return as_floats(w_.scale_dtype, bytes);
    std::vector<float> out(bytes.size());
    for (std::size_t i = 0; i < bytes.size(); ++i)
      out[i] = power_of_two(static_cast<std::uint8_t>(bytes[i]));
    return out;
  }

  void take_second(const Range& range, const std::vector<float>& second,
                   std::vector<float>& scales) const {
    const std::int64_t per_matrix = w_.scale_rows * w_.scale_columns;
    for (std::size_t i = 0; i < scales.size(); ++i) {
      const std::int64_t matrix =
          second.size() == 1 ? 0 : (range.first_scale + static_cast<std::int64_t>(i)) / per_matrix;
      const float factor = second[static_cast<std::size_t>(matrix)];
      scales[i] =
          w_.second == ScaledWeight::Second::kTimes ? scales[i] * factor : scales[i] / factor;
    }
  }

  std::vector<std::int32_t> groups(ByteView bytes) const {
    std::vector<std::int32_t> out(bytes.size() / 4);
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] = load_le<std::int32_t>(bytes.data() + 4 * i);
      if (out[i] < 0 || out[i] >= w_.scale_columns)
        fail(Code::kCorrupt, fmt::format("column {} is said to be of group {}, there are {}", i,
                                         out[i], w_.scale_columns));
    }
    return out;
  }

  float zero(std::int64_t row, std::int64_t column, const Range& range, const Read& read) const {
    if (w_.zeros == ScaledWeight::Zeros::kElements)
      return read.zeros[static_cast<std::size_t>(scale_at(row) + column - range.first_scale)];
    const std::int64_t per = w_.codes.per_unit();
    const ElementRuns words = zero_words(range.first_row, range.last_row);
    const std::int64_t at = row / per * w_.scale_columns + column - words.first;
    const auto width = static_cast<unsigned>(w_.codes.bits);
    const std::uint32_t word = load_le<std::uint32_t>(read.zero_words.data() + 4 * at);
    const std::uint32_t code =
        (word >> (width * static_cast<unsigned>(row % per))) & ((1U << width) - 1);
    return static_cast<float>(static_cast<std::int32_t>(code) - w_.codes.bias);
  }

  void scale_row(std::int64_t row, std::int64_t from, std::int64_t to, const Range& range,
                 const Read& read, std::span<float> piece) const {
    const std::int64_t base = scale_at(row) - range.first_scale;
    for (std::int64_t at = from; at < to;) {
      std::int64_t group = at / w_.block_columns;
      std::int64_t end = std::min(to, (group + 1) * w_.block_columns);
      if (w_.grouped_columns) {
        group = read.groups[static_cast<std::size_t>(at)];
        end = at + 1;
        while (end < to && read.groups[static_cast<std::size_t>(end)] == group) ++end;
      }
      const float scale = read.scales[static_cast<std::size_t>(base + group)];
      const std::span<float> block =
          piece.subspan(static_cast<std::size_t>(at - from), static_cast<std::size_t>(end - at));
      if (w_.zeros != ScaledWeight::Zeros::kNone) {
        const float none = zero(row, group, range, read);
        for (float& x : block) x -= none;
      }
      if (w_.exponents && scale == kInfinity) {
        for (float& x : block) x = std::ldexp(x, 128);
      } else {
        for (float& x : block) x *= scale;
      }
      at = end;
    }
  }

  void finish(std::span<float> numbers) const {
    if (w_.after != 1)
      for (float& x : numbers) x *= w_.after;
    if (!w_.rounded) return;
    Bytes narrow(numbers.size() * static_cast<std::size_t>(element_bytes(*w_.rounded)));
    cast_elements(DType::kFloat32, std::as_bytes(numbers), *w_.rounded, narrow);
    cast_elements(*w_.rounded, narrow, DType::kFloat32, std::as_writable_bytes(numbers));
  }

  ScaledWeight w_;
  std::int64_t units_per_row_;
  std::int64_t unit_bytes_;
  CodeReader fixed_;
};

}  // namespace

std::shared_ptr<const ElementRecipe> scaled_codes(const ScaledWeight& weight) {
  return std::make_shared<ScaledCodes>(weight);
}

}  // namespace tessera

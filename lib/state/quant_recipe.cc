// From the parts of a quantized weight to the recipe of its numbers: their shapes, held against each
// other, say how the blocks lie.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/tensor/cast.h>

#include <algorithm>

#include "lib/state/quant_weights.h"
#include "lib/state/scaled_codes.h"
#include "lib/state/turned_codes.h"

namespace tessera {
namespace {

constexpr std::int64_t kBlock = 128;  // DeepSeek-V3's, where no config.json says another
constexpr std::int64_t kMxGroup = 32, kNvGroup = 16;
constexpr std::int64_t kMostNumel = std::int64_t{1} << 46;

std::int64_t div_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// Whether `count` blocks of an extent can be of no other size than extent / count: 4 of 200 are of
/// 50, or of 64 with a smaller last one.
bool is_evident(std::int64_t extent, std::int64_t count) {
  const std::int64_t size = extent / count;
  return count == 1 || size == 1 || (size & (size - 1)) == 0;
}

class RecipeMaker {
 public:
  RecipeMaker(const Manifest& manifest, const QuantWeight& weight, const QuantFacts& facts,
              const SmallTensors& read)
      : manifest_(manifest), weight_(weight), facts_(facts), read_(read) {
    made_.dtype = facts.dtype.value_or(DType::kBFloat16);
    made_.elements.parts.push_back(weight.codes);
  }

  QuantRecipe make() {
    switch (weight_.method) {
      case QuantMethod::kScaled:
        make_scaled();
        break;
      case QuantMethod::kScb:
        make_scb();
        break;
      case QuantMethod::kFourBit:
        make_four_bit();
        break;
      case QuantMethod::kPacked:
        is_byte(codes()) ? make_packed_floats() : make_packed_integers();
        break;
      case QuantMethod::kMxfp4:
        make_mxfp4();
        break;
      case QuantMethod::kNvfp4:
        make_nvfp4(ScaledWeight::Second::kTimes, "NVFP4");
        break;
      case QuantMethod::kTurned:
        make_turned();
        break;
      case QuantMethod::kSubclass:
        make_subclass();
        break;
    }
    return std::move(made_);
  }

 private:
  const TensorSpec& spec(std::uint32_t index) const { return manifest_.tensors[index].spec; }
  const TensorSpec& codes() const { return spec(weight_.codes); }
  const TensorSpec& scale() const { return spec(need(QuantSlot::kScale)); }
  static bool is_byte(const TensorSpec& spec) { return bits(spec.dtype) == 8; }

  [[noreturn]] void refuse(const std::string& why) const {
    fail(Code::kUnsupported, fmt::format("\"{}\" cannot be dequantized: {}", weight_.name, why),
         "leave it out with --exclude, or keep the model quantized");
  }
  void require(bool holds, std::string_view why) const {
    if (!holds) refuse(std::string(why));
  }
  [[noreturn]] void misfit() const {
    refuse(fmt::format("scales of {} do not fit codes of {}", scale().to_string(),
                       codes().to_string()));
  }

  std::uint32_t need(QuantSlot slot) const {
    const auto found = weight_.find(slot);
    require(found.has_value(), "a part of it is not there");
    return *found;
  }
  void take(QuantSlot slot) { made_.elements.parts.push_back(need(slot)); }
  bool has(QuantSlot slot) const { return weight_.find(slot).has_value(); }

  /// Rows, columns and matrices of a shape; one row for a vector.
  static void set_matrix(ScaledWeight& w, const Shape& shape) {
    w.numel = shape.numel();
    w.columns = shape.rank() == 0 ? 1 : shape[shape.rank() - 1];
    w.rows = shape.rank() < 2 ? 1 : shape[shape.rank() - 2];
    w.columns = std::max<std::int64_t>(w.columns, 1);
    w.rows = std::max<std::int64_t>(w.rows, 1);
  }
  static std::int64_t matrices(const Shape& shape) {
    std::int64_t count = 1;
    for (int d = 0; d + 2 < shape.rank(); ++d) count *= shape[d];
    return count;
  }

  /// How the scales lie over the weight: one for all, one per row, blocks of both.
  std::string place_scales(ScaledWeight& w, const Shape& weight, const TensorSpec& scales) {
    w.scale_dtype = scales.dtype;
    const Shape& s = scales.shape;
    const std::int64_t stacked = matrices(weight);
    w.block_rows = w.rows;
    w.block_columns = w.columns;
    if (s.numel() == 1) return "one scale";
    if (weight.rank() < 2) misfit();
    const bool stack = s.rank() == weight.rank() && weight.rank() > 2;
    for (int d = 0; stack && d + 2 < s.rank(); ++d)
      if (s[d] != weight[d]) misfit();
    if (stack || (stacked > 1 && s.numel() == stacked)) w.scales_per_matrix = stacked > 1;
    if (w.scales_per_matrix && s.numel() == stacked) return "a scale per matrix";
    std::int64_t rows = s.rank() >= 2 ? s[s.rank() - 2] : s[0];
    std::int64_t columns = s.rank() >= 2 ? s[s.rank() - 1] : 1;
    if (!w.scales_per_matrix && stacked > 1) misfit();
    if (s.rank() > 2 && !stack) misfit();
    w.scale_rows = rows;
    w.scale_columns = columns;
    const auto [height, width] = facts_.block.value_or(std::pair(kBlock, kBlock));
    const auto is_extent = [](std::int64_t n) { return n > 0 && n <= kMostNumel; };
    if (is_extent(height) && is_extent(width) && rows == div_up(w.rows, height) &&
        columns == div_up(w.columns, width)) {
      w.block_rows = height;
      w.block_columns = width;
      return fmt::format("blocks of {}x{}", height, width);
    }
    if (rows == 0 || columns == 0 || w.rows % rows != 0 || w.columns % columns != 0) misfit();
    w.block_rows = w.rows / rows;
    w.block_columns = w.columns / columns;
    // Groups of integers along rows divide these, whatever their size.
    const bool whole_groups = w.block_rows == 1 && !is_floating(codes().dtype);
    if (!whole_groups && (!is_evident(w.rows, rows) || !is_evident(w.columns, columns)))
      refuse(fmt::format(
          "the size of its blocks is not known: scales of {} for codes of {}{}", scales.to_string(),
          codes().to_string(),
          facts_.block ? fmt::format(", and blocks of {}x{}, as config.json has them, need others",
                                     height, width)
                       : ", and no config.json says it"));
    if (w.block_rows > 1) return fmt::format("blocks of {}x{}", w.block_rows, w.block_columns);
    return columns == 1 ? "a scale per row" : fmt::format("groups of {}", w.block_columns);
  }

  void place_zeros(ScaledWeight& w) {
    if (!has(QuantSlot::kZero)) return;
    const TensorSpec& zeros = spec(need(QuantSlot::kZero));
    if (zeros.shape.numel() != scale().shape.numel())
      refuse(fmt::format("zero points of {} do not fit scales of {}", zeros.to_string(),
                         scale().to_string()));
    w.zeros = ScaledWeight::Zeros::kElements;
    w.zero_dtype = zeros.dtype;
    take(QuantSlot::kZero);
  }

  void make_scaled() {
    const bool in_words = facts_.bits.value_or(8) < 8 && codes().dtype == DType::kInt8;
    require(!in_words, fmt::format("config.json says that codes have {} bits, and how they lie in "
                                   "bytes is not known",
                                   facts_.bits.value_or(0)));
    ScaledWeight w;
    w.codes = {CodeForm::kElements, codes().dtype, 8, 0};
    set_matrix(w, codes().shape);
    std::string place;
    if (scale().dtype == DType::kUInt8) {  // MXFP8
      place_groups(w, codes().shape, kMxGroup);
      w.exponents = true;
      place = fmt::format("powers of two, groups of {}", kMxGroup);
    } else {
      place = place_scales(w, codes().shape, scale());
    }
    take(QuantSlot::kScale);
    place_zeros(w);
    take_groups(w);
    finish(w, codes().shape, fmt::format("{}, {}", torch_name(codes().dtype), place));
  }

  void take_groups(ScaledWeight& w) {
    if (!has(QuantSlot::kGroups)) return;
    const std::uint32_t index = need(QuantSlot::kGroups);
    const Bytes stored = read_.bytes(index);
    const bool none = std::ranges::all_of(stored, [](std::byte b) { return b == std::byte{0xFF}; });
    if (none) return;  // -1 everywhere
    require(spec(index).dtype == DType::kInt32 && spec(index).shape.numel() == w.columns,
            "the groups of its columns are not as many as those");
    w.grouped_columns = true;
    take(QuantSlot::kGroups);
  }

  void make_scb() {
    ScaledWeight w;
    w.codes = {CodeForm::kElements, codes().dtype, 8, 0};
    set_matrix(w, codes().shape);
    if (codes().shape.rank() != 2 || scale().shape.numel() != codes().shape[0]) misfit();
    w.scale_dtype = scale().dtype;
    w.block_columns = w.columns;
    w.scale_rows = w.rows;
    w.after = 7.874015718698502e-3F;  // 1 / 127, as the library has it
    take(QuantSlot::kScale);
    finish(w, codes().shape, "bitsandbytes int8");
  }

  void make_four_bit() {
    const Value state = read_.json(need(QuantSlot::kState));
    const auto whole = [&](const char* key) {
      const Value* found = state.find(key);
      require(found != nullptr && found->is_int() && found->as_int() > 0 &&
                  found->as_int() <= kMostNumel,
              "its state is malformed");
      return found->as_int();
    };
    const Value* shape = state.find("shape");
    require(shape != nullptr && shape->kind() == Value::Kind::kList, "its state has no shape");
    std::vector<std::int64_t> extents;
    for (const Value& extent : shape->as_list()) {
      require(extent.is_int() && extent.as_int() >= 0, "its shape is malformed");
      extents.push_back(extent.as_int());
    }
    const Shape of = Shape::checked(extents);
    const std::int64_t block = whole("blocksize"), numel = of.numel();
    ScaledWeight w;
    w.numel = numel;
    w.columns = block;
    w.rows = std::max<std::int64_t>(1, div_up(numel, block));
    // bnb_4bit_quant_storage: the bytes, in elements of any type.
    w.codes = {CodeForm::kHighFirst, codes().dtype, 4, 0};
    w.numbers = ScaledWeight::Numbers::kTable;
    w.table_numel = 16;
    w.scale_rows = w.rows;
    w.block_columns = block;
    require(block % w.codes.per_unit() == 0 && codes().size_bytes() == div_up(numel, 2) &&
                spec(need(QuantSlot::kTable)).shape.numel() == 16,
            "its codes are not as many as its shape says");
    if (scale().shape.numel() != w.rows) misfit();
    take(QuantSlot::kScale);
    take(QuantSlot::kTable);
    w.scale_dtype = scale().dtype;
    if (has(QuantSlot::kNestedScale)) {
      ScaledWeight::Nested nested;
      nested.block = whole("nested_blocksize");
      nested.scales = spec(need(QuantSlot::kNestedScale)).shape.numel();
      nested.table_numel = spec(need(QuantSlot::kNestedTable)).shape.numel();
      const Value* offset = state.find("nested_offset");
      require(offset != nullptr && offset->is_number(), "its state has no offset of scales");
      nested.offset = static_cast<float>(offset->as_real());
      require(scale().dtype == DType::kUInt8 && nested.scales == div_up(w.rows, nested.block),
              "its nested scales do not fit its scales");
      w.nested = nested;
      take(QuantSlot::kNestedScale);
      take(QuantSlot::kNestedTable);
    } else {
      require(is_castable(scale().dtype) && is_floating(scale().dtype),
              "its scales are codes, and what they mean is not there");
    }
    const Value* dtype = state.find("dtype");
    if (dtype != nullptr && dtype->is_string())
      made_.dtype = dtype_from_torch_name(dtype->as_string()).value_or(made_.dtype);
    finish(w, of, w.nested ? "bitsandbytes 4 bits, doubly quantized" : "bitsandbytes 4 bits");
  }

  void make_packed_integers() {
    require(codes().shape.rank() == 2 && has(QuantSlot::kShape), "its shape is not there");
    const Bytes values = read_.bytes(need(QuantSlot::kShape));
    require(spec(need(QuantSlot::kShape)).dtype == DType::kInt64 && values.size() == 16,
            "its shape is malformed");
    const auto rows = static_cast<std::int64_t>(load_le<std::uint64_t>(values.data()));
    const auto columns = static_cast<std::int64_t>(load_le<std::uint64_t>(values.data() + 8));
    require(rows > 0 && columns > 0 && rows <= kMostNumel && columns <= kMostNumel / rows,
            "its shape is malformed");
    ScaledWeight w;
    const Shape of({rows, columns});
    set_matrix(w, of);
    require(!facts_.packed_bits || *facts_.packed_bits == 4 || *facts_.packed_bits == 8 ||
                *facts_.packed_bits == 2,
            fmt::format("codes of {} bits are not read", facts_.packed_bits.value_or(0)));
    for (const int width : {4, 8, 2})
      if (codes().shape[1] == div_up(columns, 32 / width) && w.codes.form != CodeForm::kWords)
        w.codes = {CodeForm::kWords, codes().dtype, width, 1 << (width - 1)};
    require(w.codes.form == CodeForm::kWords && codes().shape[0] == rows,
            "its codes are not as many as its shape says");
    const std::string place = place_scales(w, of, scale());
    take(QuantSlot::kScale);
    if (has(QuantSlot::kZero)) {
      const TensorSpec& zeros = spec(need(QuantSlot::kZero));
      if (zeros.dtype == DType::kInt32) {
        require(zeros.shape.rank() == 2 && w.block_rows == 1 &&
                    zeros.shape[0] == div_up(rows, 32 / w.codes.bits) &&
                    zeros.shape[1] == w.scale_columns,
                "its packed zero points do not fit its scales");
        w.zeros = ScaledWeight::Zeros::kWords;
        take(QuantSlot::kZero);
      } else {
        place_zeros(w);
      }
    }
    take_groups(w);
    finish(w, of, fmt::format("int{}, {}", w.codes.bits, place));
  }

  /// 4-bit floats in bytes along the last dim.
  ScaledWeight halves(const Shape& of) const {
    ScaledWeight w;
    set_matrix(w, of);
    w.codes = {CodeForm::kLowFirst, codes().dtype, 4, 0};
    w.numbers = ScaledWeight::Numbers::kE2m1;
    return w;
  }
  Shape doubled() const {
    require(codes().shape.rank() >= 1, "its codes are a scalar");
    std::vector<std::int64_t> extents(codes().shape.extents().begin(),
                                      codes().shape.extents().end());
    extents.back() *= 2;
    return Shape::checked(extents);
  }

  /// Scales of groups along the last dim, and nothing else.
  void place_groups(ScaledWeight& w, const Shape& of, std::int64_t group) const {
    const Shape& s = scale().shape;
    bool same = s.rank() == of.rank() && s[s.rank() - 1] == div_up(w.columns, group);
    for (int d = 0; same && d + 1 < s.rank(); ++d) same = s[d] == of[d];
    if (!same) misfit();
    w.scale_dtype = scale().dtype;
    w.scales_per_matrix = matrices(of) > 1;
    w.scale_rows = w.rows;
    w.scale_columns = s[s.rank() - 1];
    w.block_columns = group;
  }

  void make_packed_floats() {
    require(facts_.packed_bits.value_or(4) == 4,
            fmt::format("codes of {} bits are not read", facts_.packed_bits.value_or(0)));
    if (has(QuantSlot::kSecondScale)) return make_nvfp4(ScaledWeight::Second::kDividedBy, "NVFP4");
    const bool exponents = scale().dtype == DType::kUInt8 || scale().dtype == DType::kFloat8E8M0Fnu;
    require(exponents, "its scales are of no type that is known for such codes");
    const Shape of = doubled();
    ScaledWeight w = halves(of);
    place_groups(w, of, kMxGroup);
    w.exponents = true;
    take(QuantSlot::kScale);
    finish(w, of, "MXFP4");
  }

  void make_mxfp4() {
    const Shape& s = codes().shape;
    const bool exponents = scale().dtype == DType::kUInt8 || scale().dtype == DType::kFloat8E8M0Fnu;
    if (s.rank() < 2 || scale().shape.rank() != s.rank() - 1 || !exponents) misfit();
    for (int d = 0; d + 1 < s.rank(); ++d)
      if (scale().shape[d] != s[d]) misfit();
    std::vector<std::int64_t> extents(s.extents().begin(), s.extents().end());
    const std::int64_t group = extents.back() * 2;
    extents.pop_back();
    require(group > 0 && extents.back() <= kMostNumel / group, "its blocks are malformed");
    extents.back() *= group;
    const Shape of = Shape::checked(extents);
    ScaledWeight w = halves(of);
    place_groups(w, of, group);
    w.exponents = true;
    take(QuantSlot::kScale);
    finish(w, of, "MXFP4");
  }

  void make_nvfp4(ScaledWeight::Second second, std::string_view scheme) {
    const Shape of = doubled();
    ScaledWeight w = halves(of);
    place_groups(w, of, kNvGroup);
    const TensorSpec& whole = spec(need(QuantSlot::kSecondScale));
    w.second = second;
    w.second_numel = whole.shape.numel();
    const bool fits =
        w.second_numel == 1 || (w.scales_per_matrix && w.second_numel == matrices(of));
    require(whole.dtype == DType::kFloat32 && fits, "its second scale is not one per matrix");
    take(QuantSlot::kScale);
    take(QuantSlot::kSecondScale);
    finish(w, of, std::string(scheme));
  }

  void make_turned() {
    const auto zeros = weight_.find(QuantSlot::kZero), groups = weight_.find(QuantSlot::kGroups);
    const TurnedParts parts{codes(), scale(), zeros ? &spec(*zeros) : nullptr,
                            groups ? &spec(*groups) : nullptr};
    const TurnedStored stored{facts_.bits, facts_.group_size, facts_.stored_zeros};
    require(!facts_.words_by_column, "AWQ's version gemv is not read");
    const TurnedFit fit = fit_turned(parts, stored);
    require(fit.refused.empty(), fit.refused);
    take(QuantSlot::kScale);
    if (zeros) take(QuantSlot::kZero);
    if (groups) take(QuantSlot::kGroups);
    const TurnedWeight& w = fit.weight;
    made_.shape = Shape({w.outputs, w.inputs});
    if (!facts_.dtype) made_.dtype = w.scale_dtype;
    const bool awq = w.packing == TurnedWeight::Packing::kAlongOutputs;
    made_.scheme =
        fmt::format("{}, {} bits, groups of {}", awq ? "AWQ" : "GPTQ", w.bits, w.group_size);
    made_.elements.recipe = turned_codes(w);
  }

  /// torchao: the numbers are those of the type that the object has.
  void make_subclass() {
    require(!has(QuantSlot::kTable), "its codes stand for the entries of a table of its class");
    require(codes().dtype != DType::kUInt8, "how its codes are packed is not known");
    ScaledWeight w;
    w.codes = {CodeForm::kElements, codes().dtype, 8, 0};
    set_matrix(w, codes().shape);
    const std::string place = place_scales(w, codes().shape, scale());
    take(QuantSlot::kScale);
    place_zeros(w);
    w.rounded = made_.dtype;
    finish(w, codes().shape, fmt::format("torchao, {}, {}", torch_name(codes().dtype), place));
  }

  void finish(const ScaledWeight& w, const Shape& shape, std::string scheme) {
    made_.shape = shape;
    made_.scheme = std::move(scheme);
    made_.elements.recipe = scaled_codes(w);
  }

  const Manifest& manifest_;
  const QuantWeight& weight_;
  const QuantFacts& facts_;
  const SmallTensors& read_;
  QuantRecipe made_;
};

}  // namespace

QuantRecipe quant_recipe(const Manifest& manifest, const QuantWeight& weight,
                         const QuantFacts& facts, const SmallTensors& read) {
  return in_tensor(manifest.tensors[weight.codes].name,
                   [&] { return RecipeMaker(manifest, weight, facts, read).make(); });
}

}  // namespace tessera

#pragma once
// The recipe of weights that are codes times scales of blocks:
//
//   weight[r, c] = (code[r, c] - zero[r / a, c / b]) * scale[r / a, c / b]
//
// as fp8 in blocks, per row or per tensor, int4 and int8 with or without zero points, MXFP4, NVFP4,
// and, seen as rows of one block each, bitsandbytes' 4 bits and 8-bit optimizer state. In float32,
// in the order of the frameworks' own arithmetic, so that one rounding gives their result.
#include <tessera/state/element_recipe.h>
#include <tessera/tensor/dtype.h>

#include <optional>

#include "lib/state/quant_codes.h"

namespace tessera {

struct ScaledWeight {
  std::int64_t numel = 0;
  std::int64_t rows = 1;  // of one matrix; a stack of matrices has them one after the other
  std::int64_t columns = 1;
  CodePacking codes;
  enum class Numbers : std::uint8_t { kOwn, kE2m1, kTable } numbers = Numbers::kOwn;
  std::int64_t table_numel = 0;  // kTable: float32, a part

  // Scales: a matrix of them for each matrix, or one for all.
  std::int64_t block_rows = 1, block_columns = 1;
  std::int64_t scale_rows = 1, scale_columns = 1;
  bool scales_per_matrix = false;
  DType scale_dtype = DType::kFloat32;
  bool exponents = false;  // bytes e of 2^(e - 127)
  enum class Second : std::uint8_t { kNone, kTimes, kDividedBy } second = Second::kNone;
  std::int64_t second_numel = 1;  // 1, or one for each matrix
  float after = 1;                // multiplies the product

  enum class Zeros : std::uint8_t { kNone, kElements, kWords } zeros = Zeros::kNone;
  DType zero_dtype = DType::kInt8;  // kElements, one per scale; kWords: packed along the rows
  bool grouped_columns = false;     // a part names the group of each column (int32)

  /// The scales are codes themselves: table[code] * scale + offset.
  struct Nested {
    std::int64_t block = 256, scales = 0, table_numel = 256;
    float offset = 0;
  };
  std::optional<Nested> nested;
  std::optional<DType> rounded;  // results are rounded to this type, and stay float32
};

/// Parts in this order, those that there are: codes, scales, second scale, zeros, groups of columns,
/// table, nested scales, nested table. Makes float32.
std::shared_ptr<const ElementRecipe> scaled_codes(const ScaledWeight& weight);

}  // namespace tessera

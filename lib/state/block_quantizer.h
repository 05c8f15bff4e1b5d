#pragma once
// The recipes that make a plain weight quantized: its codes and its scales, computed in float32 as the
// writers of such checkpoints compute them. All of a weight but what is asked for stays unread.
//
//   fp8 blocks  scale = largest magnitude of 128 x 128 elements / 448; code = e4m3(x / scale)
//               (DeepSeek-V3, compressed-tensors' FP8_BLOCK); blocks at the edges are smaller
//   MXFP4       scale = the least power of two that is largest of 32 / 6 or more;
//               code = e2m1(x / scale) (GPT-OSS)
//   NVFP4       second = 448 * 6 / largest of all; scale = e4m3(second * (largest of 16 / 6));
//               code = e2m1(x / (scale / second)) (compressed-tensors)
//
// Numbers are rounded to the nearest, ties to even, and those beyond the largest become the largest.
// A scale that would be 0 is 1 (fp8), 2^-127 (MXFP4), 1/8 (NVFP4): then all codes of its block are 0.
// NaN and Inf have no scale: kUnsupported. Pure.
#include <tessera/state/block_scheme.h>
#include <tessera/state/element_recipe.h>
#include <tessera/tensor/dtype.h>

#include <cstdint>
#include <memory>
#include <span>

namespace tessera {

/// Elements of a row that share a scale.
std::int64_t block_columns(BlockScheme scheme);

struct BlockWeight {
  BlockScheme scheme = BlockScheme::kFp8;
  DType dtype = DType::kBFloat16;  // of its elements; see can_be_quantized
  std::int64_t rows = 0,
               columns = 0;  // of all matrices of a stack, one below the other (kFp8: one)
  float second = 1;          // kNvfp4
};

/// float16, bfloat16 and float32.
bool can_be_quantized(DType dtype);

// Each with the weight as its only part. Precondition for 4 bits: whole groups in each row.
/// fp8: an element per element; 4 bits: two of a row in a byte, the first in the lower half.
std::shared_ptr<const ElementRecipe> block_codes(const BlockWeight& weight);
/// In rows of blocks: float32 (fp8), bytes e of 2^(e - 127) (MXFP4), float8_e4m3fn (NVFP4).
std::shared_ptr<const ElementRecipe> block_scales(const BlockWeight& weight);

/// The largest magnitude of elements of a type that can_be_quantized. Throws kUnsupported for NaN and
/// Inf.
float largest_magnitude(DType dtype, ByteView elements);
/// NVFP4's second scale of weights with this largest magnitude.
float second_scale(float largest);

}  // namespace tessera

#pragma once
// The recipe of weights whose codes lie turned, columns of the weight as rows (GPTQ, AWQ):
//
//   weight[o, i] = (code[i, o] - zero[group(i), o]) * scale[group(i), o]
//
// In float32, where the product of a scale in float16 and a difference of codes is exact.
#include <tessera/state/element_recipe.h>
#include <tessera/tensor/shape.h>

#include <optional>
#include <string>

namespace tessera {

struct TurnedWeight {
  enum class Packing : std::uint8_t {
    kAlongInputs,   // GPTQ: a word holds codes of one output
    kAlongOutputs,  // AWQ: of one input, in the order 0 2 4 6 1 3 5 7
  };
  Packing packing = Packing::kAlongInputs;
  std::int64_t outputs = 0, inputs = 0;
  int bits = 4;
  std::int64_t groups = 1, group_size = 0;  // of inputs
  bool has_zeros = true;                    // else in the middle of the codes' range
  bool grouped_inputs = false;              // a part names the group of each input (int32)
  int zero_bias = 0;                        // added to stored zeros (GPTQ's first form: 1)
  DType scale_dtype = DType::kFloat16;
};

/// Parts: codes, scales, zeros, groups of inputs; the last two where there are any. Makes float32.
std::shared_ptr<const ElementRecipe> turned_codes(const TurnedWeight& weight);

struct TurnedParts {
  const TensorSpec& codes;
  const TensorSpec& scales;
  const TensorSpec* zeros;   // nullptr: none
  const TensorSpec* groups;  // of inputs; nullptr: none
};
/// What a configuration says.
struct TurnedStored {
  std::optional<std::int64_t> bits, group_size;
  bool zeros_as_they_are = false;
};
struct TurnedFit {
  TurnedWeight weight;
  std::string refused;  // why the parts make no weight; "" where they do
};
TurnedFit fit_turned(const TurnedParts& parts, const TurnedStored& stored);

}  // namespace tessera

#pragma once
// Quantized weights: which tensors are one weight together, by names, types and shapes (the table is
// in quant_weights.cc), and the recipe that makes plain numbers of them. What neither names nor
// shapes decide comes from the model's quantization_config. Pure.
#include <tessera/state/element_recipe.h>
#include <tessera/state/manifest.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

/// What a tensor is to the weight that it is part of.
enum class QuantSlot : std::uint8_t {
  kScale,
  kSecondScale,  // of the whole matrix
  kZero,
  kGroups,  // of columns
  kShape,   // of the weight, as its values
  kTable,
  kNestedScale,
  kNestedTable,
  kState,       // JSON
  kActivation,  // of inputs and outputs: no part of the weight's numbers
};

enum class QuantMethod : std::uint8_t {
  kScaled,    // an element per code: fp8, int8
  kScb,       // bitsandbytes' int8
  kFourBit,   // bitsandbytes' nf4 and fp4
  kPacked,    // compressed-tensors: integers in words, or 4-bit floats
  kMxfp4,     // _blocks, _scales
  kNvfp4,     // modelopt: _scale, _scale_2
  kTurned,    // GPTQ, AWQ
  kSubclass,  // torchao in safetensors, and tensor subclasses by their attributes
};

struct QuantWeight {
  std::string name;  // of the plain weight
  QuantMethod method = QuantMethod::kScaled;
  std::uint32_t codes = 0;
  std::vector<std::pair<QuantSlot, std::uint32_t>> parts;  // indices in Manifest::tensors

  std::optional<std::uint32_t> find(QuantSlot slot) const;
};

/// Codes without the scale that makes numbers of them, or with one of a shape that cannot be.
struct LoneCodes {
  std::uint32_t codes = 0;
  std::string why;
};

struct QuantWeights {
  std::vector<QuantWeight> weights;
  std::vector<LoneCodes> lone;
};

/// What a config.json says of quantization.
struct QuantFacts {
  std::string method;                                          // "fp8", "gptq"
  std::optional<std::pair<std::int64_t, std::int64_t>> block;  // rows and columns of a block
  std::optional<std::int64_t> bits, group_size;
  std::optional<std::int64_t> packed_bits;  // of compressed-tensors' packed integers
  bool stored_zeros = false;                // GPTQ's second form: zeros as they are
  bool words_by_column = false;             // AWQ's "gemv": not read
  std::optional<DType> dtype;               // of the model
};
QuantFacts quant_facts(const Value& config);

QuantWeights quant_weights(const Manifest& manifest, const QuantFacts& facts);

/// Reads small tensors: their bytes, or the JSON that these are.
struct SmallTensors {
  std::function<Bytes(std::uint32_t)> bytes;
  std::function<Value(std::uint32_t)> json;
};

struct QuantRecipe {
  std::string scheme;  // "fp8, blocks of 128x128"
  Shape shape;
  ComputedElements elements;       // float32
  DType dtype = DType::kBFloat16;  // as its framework computes with it
};
/// Throws kUnsupported or kCorrupt, naming the weight.
QuantRecipe quant_recipe(const Manifest& manifest, const QuantWeight& weight,
                         const QuantFacts& facts, const SmallTensors& read);

}  // namespace tessera

#pragma once
// Parts of quantized weights: packed codes, and the scales, zero points and tables that make numbers
// of them. They are one weight: a part that is cast alone changes the weight (a codebook in another
// type is another codebook), so that casts leave all of them as they are.
//
// Which tensors are parts is decided by structure, a tensor of codes and others under the names that
// the table (quant_parts.cc) lists for such beside it; no configuration is needed. All that a module
// keeps beside a weight that is codes is a part, whatever its name, but biases and adapters. Pure.
#include <tessera/state/manifest.h>

#include <string_view>
#include <vector>

namespace tessera {

/// kLayout: no numbers of the weight's (its shape, an order). kCache: of the attention's cache.
/// kOther: beside codes, under a name that the table does not have.
enum class QuantPart : std::uint8_t {
  kNone,
  kCodes,
  kScale,
  kZeroPoint,
  kTable,
  kLayout,
  kCache,
  kOther
};

/// "layers.0" of "layers.0.weight"; "" at the top.
std::string_view module_of(std::string_view name);

/// One per tensor of the manifest.
std::vector<QuantPart> quant_parts(const Manifest& manifest);

}  // namespace tessera

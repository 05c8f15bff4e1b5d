#pragma once
// What a writer says of a tensor whose element type its format cannot hold: one wording for all.
#include <tessera/state/manifest.h>

#include <string>
#include <string_view>

namespace tessera {

/// kUnsupported, as `tensor "w": safetensors cannot hold float4_e2m1fn_x2`, with a hint that ends
/// the matter: every format holds float32.
[[noreturn]] void refuse_dtype(const StoredTensor& tensor, std::string_view format);

/// How a user gets two tensors, which must have one type, to have it.
std::string one_type_hint(const StoredTensor& a, const StoredTensor& b);

}  // namespace tessera

#pragma once
// Weight deltas, as reinforcement learning passes new weights on: safetensors whose tensors are zstd
// blobs against the same tensors of a base version. docs/formats/safetensors.md has the bytes.
#include <tessera/format/safetensors.h>

namespace tessera::st {

/// Is each of its tensors a blob of bytes whose checksum stands in __metadata__ under its name?
bool looks_like_delta(const Manifest& manifest);

/// Throws kUnsupported: what it is, and how to read it.
[[noreturn]] void refuse_delta(const DeltaIndex& index);

}  // namespace tessera::st

#pragma once
// Tensors streamed two at a time, for what works on two at once faster than on one after the other.
#include <tessera/reshard/tensor_reader.h>

#include <cstdint>
#include <functional>
#include <span>

namespace tessera {

/// As TensorReader::stream, but each call brings the next blocks of two different tensors, or of
/// one (`second` is null) where no other is left.
void stream_pairs(const Manifest& manifest, const Directory& directory,
                  const TransferOptions& options, std::span<const std::uint32_t> tensors,
                  const std::function<void(const TensorReader::Block& first,
                                           const TensorReader::Block* second)>& sink);

}  // namespace tessera

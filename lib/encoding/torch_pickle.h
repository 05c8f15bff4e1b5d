#pragma once
// data.pkl of an archive to be written.
#include <tessera/encoding/torch_archive_writer.h>

#include <cstdint>
#include <vector>

namespace tessera {

/// Protocol 2, tensors by torch._utils' rebuild functions; what torch.load(weights_only=True)
/// accepts.
Bytes write_torch_pickle(const Value& root, const std::vector<ArchiveWriteTensor>& tensors);

/// Strides of a contiguous tensor, in elements, as PyTorch counts them: a zero extent counts as
/// one.
std::vector<std::int64_t> contiguous_strides(const Shape& shape);

}  // namespace tessera

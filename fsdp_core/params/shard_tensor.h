#pragma once
// The tensor of a shard parameter, which knows whether its values may have changed. Its version
// counter sees writes to the tensor itself. What data() returns has a counter of its own, and some
// optimizers write through it (torch::optim::SGD), so a call of data() counts as a change.
#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <cstdint>

namespace tessera::fsdp {

/// As tensor_over.
at::Tensor shard_over(const c10::Storage& storage, at::ScalarType dtype, std::int64_t offset,
                      at::IntArrayRef sizes);

/// Grows with every write, and with every way to write that was handed out. Precondition: `shard`
/// is by shard_over.
std::uint64_t changes_of(const at::Tensor& shard);

}  // namespace tessera::fsdp

#pragma once
// What ranks hold a part each of, seen by all of them.
#include <ATen/core/Tensor.h>
#include <tessera/fsdp/communicator.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace tessera::fsdp {

/// Shows `visit` the parts (1-D) of all ranks of `ranks` in the order of ranks, of which `own` is
/// this rank's; `lengths`: of each. One all-gather, or, where parts are so unequal that its padding
/// would take more than the parts, a broadcast of each. Collective.
void gather_parts(Communicator& ranks, const at::Tensor& own,
                  const std::vector<std::int64_t>& lengths, const CommTag& tag,
                  const std::function<void(int rank, const at::Tensor& part)>& visit);

}  // namespace tessera::fsdp

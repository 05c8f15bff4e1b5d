#pragma once
// A collective that tests of failures wait in, and that shows whether a group works.
#include <ATen/ATen.h>

#include "tests/fsdp/comm_support.h"

namespace tessera::fsdp::testing {

constexpr CommTag kForward{"layers.2", CommPhase::kForward};
constexpr CommTag kBackward{"layers.2", CommPhase::kBackward};

/// Ones summed over the world; throws when the sum is another number.
inline void sum_once(World& world, const CommTag& tag = kForward, std::int64_t numel = 4) {
  at::Tensor ones = at::ones({numel});
  world.communicator()->all_reduce(ones, Reduce::kSum, tag);
  require(ones[numel - 1].item<float>() == static_cast<float>(world.size()), "wrong sum");
}

}  // namespace tessera::fsdp::testing

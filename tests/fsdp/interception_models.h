#pragma once
// For the tests of intercepted calls: modules whose values are exact, alone on one rank.
#include <tessera/fsdp.h>
#include <torch/torch.h>

namespace tessera::fsdp::interception {

using torch::Tensor;

/// One rank, so that values can be compared; parameters are gathered into another dtype, without
/// which they would stay where they are. All values here are exact in bfloat16.
inline Options alone() {
  Options options;
  options.process_group = single_communicator();
  options.reshard_after_forward = true;
  options.mixed_precision.param_dtype = torch::kBFloat16;
  options.mixed_precision.output_dtype = torch::kFloat;
  return options;
}

inline Options alone_as_stored() {
  Options options;
  options.process_group = single_communicator();
  return options;
}

/// A weight of its own, so that a forward that is not intercepted fails.
struct Scaled : torch::nn::Module {
  Tensor weight;
  Scaled() : weight(register_parameter("weight", torch::arange(1, 5).to(torch::kFloat))) {}
};

struct BlockImpl : Scaled {
  Tensor forward(Tensor x) { return x * weight; }
};
FSDP_MODULE(Block);

/// Outside of its unit's forward.
inline bool sharded(const Tensor& full) {
  try {
    (void)(full + 1);
    return false;
  } catch (const c10::Error&) {
    return true;
  }
}

inline const Tensor kX = torch::tensor({1.f, -2.f, 3.f, 0.5f});
inline Tensor expected() { return kX * torch::tensor({1.f, 2.f, 3.f, 4.f}); }

}  // namespace tessera::fsdp::interception

// Loads the runtime that is linked with NCCL. With a GPU a world over it sums; without one it must
// be refused in one clear sentence.
#include <ATen/ATen.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <tessera/fsdp/world.h>

#include <iostream>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "fsdp_core/comm/nccl_comm.h"

namespace fsdp = tessera::fsdp;

namespace {

/// One rank alone, but through NCCL.
void sum_over_nccl() {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const fsdp::StoreLink link{store, std::make_shared<fsdp::FailureBoard>(store)};
  const auto comm = fsdp::make_nccl({"world", 0, {0}}, 0, link, 0);
  at::Tensor tensor = at::full({4}, 3.0f, at::TensorOptions(at::kCUDA));
  comm->all_reduce(tensor, fsdp::Reduce::kSum, {"", fsdp::CommPhase::kSetup});
  comm->barrier({});
  std::cout << "NCCL all-reduce among one rank: " << tensor.cpu()[0].item<float>() << "\n";
}

}  // namespace

int main() {
  const int gpus = at::detail::getCUDAHooks().deviceCount();
  std::cout << "linked with NCCL; " << gpus << " GPUs\n";
  fsdp::WorldOptions options;
  options.backend = "nccl";
  try {
    const fsdp::World world = fsdp::init_from_env(options);
    sum_over_nccl();
    return 0;
  } catch (const tessera::Error& error) {
    std::cout << "refused: " << error.what() << "\n";
    return gpus == 0 && error.code() == tessera::Code::kUnsupported ? 0 : 1;
  }
}

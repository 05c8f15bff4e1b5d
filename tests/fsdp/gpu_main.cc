// Tests that need a GPU. Exit code 77: skipped, with the reason printed.
#define CATCH_CONFIG_RUNNER
#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <cstdio>

int main(int argc, char** argv) {
  if (!torch::cuda::is_available()) {
    std::puts("skipped: no GPU, or a LibTorch without CUDA");
    return 77;
  }
  return Catch::Session().run(argc, argv);
}

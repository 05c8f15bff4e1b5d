#define CATCH_CONFIG_RUNNER
#include <ATen/Parallel.h>
#include <catch2/catch.hpp>

// Ranks are threads here: LibTorch's own threads would only compete with them.
int main(int argc, char** argv) {
  at::set_num_threads(1);
  return Catch::Session().run(argc, argv);
}

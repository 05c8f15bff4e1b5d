#include "tests/fsdp/comm_support.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <stdexcept>

namespace tessera::fsdp::testing {

std::vector<std::string> thrown_by_ranks(int size, const std::function<void(World&)>& body,
                                         const WorldOptions& options) {
  std::vector<std::string> thrown(size);
  const auto keep = [&](World& world) {
    try {
      body(world);
    } catch (const std::exception& error) {
      thrown[world.rank()] = error.what();
      throw;
    }
  };
  try {
    run_threads(size, keep, options);
  } catch (const std::exception&) {
    // kept above
  }
  return thrown;
}

void require(bool ok, const std::string& what) {
  if (!ok) throw std::runtime_error(what);
}

double sample(int rank, std::int64_t i, int salt) {
  const std::uint64_t mixed = (rank + 1) * 0x9E3779B97F4A7C15ull ^ (i + 1) * 0xC2B2AE3D27D4EB4Full ^
                              (salt + 1) * 0x165667B19E3779F9ull;
  return static_cast<double>((mixed >> 40) % 13);
}

at::Tensor sample_tensor(int rank, std::int64_t numel, at::ScalarType dtype, int salt) {
  at::Tensor values = at::empty({numel}, at::kDouble);
  double* data = values.data_ptr<double>();
  for (std::int64_t i = 0; i < numel; ++i) data[i] = sample(rank, i, salt);
  return values.to(dtype);
}

at::Tensor expected_reduction(int size, std::int64_t numel, at::ScalarType dtype, Reduce reduce,
                              int salt) {
  at::Tensor values = at::empty({numel}, at::kDouble);
  double* data = values.data_ptr<double>();
  for (std::int64_t i = 0; i < numel; ++i) {
    double result = sample(0, i, salt);
    for (int rank = 1; rank < size; ++rank) {
      const double part = sample(rank, i, salt);
      result = reduce == Reduce::kMax   ? std::max(result, part)
               : reduce == Reduce::kMin ? std::min(result, part)
                                        : result + part;
    }
    // fp32 is what 16-bit types and fp32 itself divide in.
    if (reduce == Reduce::kAverage)
      result = dtype == at::kDouble ? result / size
                                    : static_cast<float>(result) / static_cast<float>(size);
    data[i] = result;
  }
  return values.to(dtype);
}

}  // namespace tessera::fsdp::testing

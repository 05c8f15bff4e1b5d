// What sharding costs the CPU in one training step, apart from moving bytes: a chain of small units
// over a group that talks to nobody, less the same chain unsharded. One JSON line, microseconds per
// unit and step; bench/fsdp_overhead.py runs the same chain under PyTorch's FSDP2 beside it.
//
//   fsdp_overhead [WORLD_SIZE=8] [PARAMETERS=10] [UNITS=100] [STEPS=40] [ROUNDS=7] [LAYOUT=flat|rows]
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <tessera/fsdp.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <string>
#include <vector>

namespace fsdp = tessera::fsdp;

namespace {

constexpr std::int64_t kNumel = 1024;  // of each parameter: 4 KiB

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int parameters) {
    for (int p = 0; p < parameters; ++p)
      weights.push_back(register_parameter(fmt::format("w{}", p), torch::ones({kNumel})));
  }
  torch::Tensor forward(torch::Tensor x) {
    for (const torch::Tensor& weight : weights) x = x * weight;
    return x;
  }
  std::vector<torch::Tensor> weights;
};
FSDP_MODULE(Block);

struct ChainImpl : torch::nn::Module {
  ChainImpl(int units, int parameters) {
    for (int u = 0; u < units; ++u)
      blocks.push_back(register_module(fmt::format("b{}", u), Block(parameters)));
  }
  torch::Tensor forward(torch::Tensor x) {
    for (Block& block : blocks) x = block->forward(x);
    return x;
  }
  std::vector<Block> blocks;
};
FSDP_MODULE(Chain);

double cpu_seconds() {
  timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// CPU microseconds per unit and step. Gradients are cleared as an optimizer's zero_grad does.
double measure(Chain& chain, int units, int steps) {
  const torch::Tensor x = torch::ones({kNumel}).set_requires_grad(true);
  const double start = cpu_seconds();
  for (int step = 0; step < steps; ++step) {
    chain->forward(x).sum().backward();
    for (torch::Tensor& parameter : chain->parameters()) parameter.mutable_grad().reset();
  }
  return (cpu_seconds() - start) / steps / units * 1e6;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  const auto number = [&](int at, int otherwise) {
    return argc > at ? std::atoi(argv[at]) : otherwise;
  };
  const int world_size = number(1, 8), parameters = number(2, 10), units = number(3, 100);
  const int steps = number(4, 40), rounds = number(5, 7);
  const bool rows = argc > 6 && std::string(argv[6]) == "rows";
  at::set_num_threads(1);

  Chain plain(units, parameters), sharded(units, parameters);
  const fsdp::World world = fsdp::fake_world(0, world_size);
  fsdp::Options options;
  options.mesh = world.mesh();
  if (rows) options.layout = fsdp::MemoryLayout::kPerParameter;
  for (Block& block : sharded->blocks) fsdp::fully_shard(block, options);
  fsdp::fully_shard(sharded, options);

  measure(plain, units, 3);
  measure(sharded, units, 3);
  std::vector<double> with, without, overhead;
  for (int round = 0; round < rounds; ++round) {
    without.push_back(measure(plain, units, steps));
    with.push_back(measure(sharded, units, steps));
    overhead.push_back(with.back() - without.back());
  }
  fmt::print(
      "{{\"world_size\": {}, \"parameters\": {}, \"units\": {}, \"plain_us\": {:.1f}, "
      "\"sharded_us\": {:.1f}, "
      "\"overhead_us\": {:.1f}, \"overhead_us_min\": {:.1f}, \"overhead_us_max\": {:.1f}}}\n",
      world_size, parameters, units, median(without), median(with), median(overhead),
      *std::min_element(overhead.begin(), overhead.end()),
      *std::max_element(overhead.begin(), overhead.end()));
}

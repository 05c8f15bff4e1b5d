// On a GPU, one rank: every strategy, layout, precision and offload trains as the plain module does
// on the CPU. Needs a LibTorch with CUDA and a device; gpu_main.cc says so and skips elsewhere.
#include "tests/fsdp/models.h"
#include "tests/fsdp/torch_and_catch.h"

using namespace tessera::fsdp;
using namespace tessera::fsdp::test;

namespace {

constexpr int kSteps = 6;

std::vector<double> train(Net& net, torch::Device device, bool low) {
  const Data data = make_data();
  const torch::Tensor x = data.x.to(device), y = data.y.to(device);
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(1e-2));
  std::vector<double> losses;
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    const torch::Tensor loss = torch::mse_loss(net->forward(x).to(torch::kFloat), y);
    loss.backward();
    if (!low) clip_grad_norm_(net, 1.0);
    optimizer.step();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

std::vector<double> train_plain() {
  const Data data = make_data();
  Net net = make_net();
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(1e-2));
  std::vector<double> losses;
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    const torch::Tensor loss = torch::mse_loss(net->forward(data.x), data.y);
    loss.backward();
    torch::nn::utils::clip_grad_norm_(net->parameters(), 1.0);
    optimizer.step();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

}  // namespace

TEST_CASE("on a GPU every strategy trains as the plain module") {
  static const std::vector<double> plain = train_plain();
  const torch::Device gpu(torch::kCUDA, 0);
  Options options;
  options.strategy = static_cast<ShardingStrategy>(GENERATE(0, 1, 2));
  options.layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  options.cpu_offload.offload_params = GENERATE(false, true);
  const bool low = GENERATE(false, true), moved = GENERATE(false, true);
  if (low) {
    options.mixed_precision.param_dtype = torch::kBFloat16;
    options.mixed_precision.reduce_dtype = torch::kFloat;
  }
  options.device = gpu;
  CAPTURE(strategy_name(options.strategy), options.cpu_offload.offload_params, low, moved);
  Net net = make_net();
  if (moved) net->to(gpu);  // else options.device does it
  shard(net, options);
  for (const torch::Tensor& parameter : net->parameters())
    CHECK(parameter.is_cuda() == !options.cpu_offload.offload_params);
  const std::vector<double> losses = train(net, gpu, low);
  for (std::size_t step = 0; step < plain.size(); ++step)
    CHECK(losses[step] == Approx(plain[step]).epsilon(low ? 0.1 : 1e-3));
}

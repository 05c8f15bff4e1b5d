// A user's training program: a module of his own, sharded, trained, saved and loaded again.
#include <tessera/fsdp.h>
#include <torch/torch.h>

#include <cstdio>
#include <string>
#include <vector>

namespace fsdp = tessera::fsdp;

struct BlockImpl : torch::nn::Module {
  BlockImpl() : linear(register_module("linear", torch::nn::Linear(8, 8))) {}
  torch::Tensor forward(torch::Tensor x) { return x + torch::relu(linear->forward(x)); }
  torch::nn::Linear linear;
};
FSDP_MODULE(Block);

struct NetImpl : torch::nn::Module {
  NetImpl() {
    for (int i = 0; i < 2; ++i)
      blocks.push_back(register_module("block" + std::to_string(i), Block()));
    head = register_module("head", torch::nn::Linear(8, 1));
  }
  torch::Tensor forward(torch::Tensor x) {
    for (Block& block : blocks) x = block->forward(x);
    return head->forward(x);
  }
  std::vector<Block> blocks;
  torch::nn::Linear head{nullptr};
};
FSDP_MODULE(Net);

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const std::string dir = argv[1];
  fsdp::World world = fsdp::init_from_env();
  torch::manual_seed(1);
  Net model;
  fsdp::Options options;
  options.mesh = world.mesh();
  options.strategy = fsdp::ShardingStrategy::kFullShard;
  for (Block& block : model->blocks) fsdp::fully_shard(block, options);
  fsdp::fully_shard(model, options);
  torch::optim::AdamW optimizer(model->parameters(), 1e-2);
  const torch::Tensor x = torch::randn({16, 8}), y = x.sum(1, true);
  double first = 0, last = 0;
  for (int step = 0; step < 20; ++step) {
    optimizer.zero_grad();
    const torch::Tensor loss = torch::mse_loss(model->forward(x), y);
    loss.backward();
    fsdp::clip_grad_norm_(model, 1.0);
    optimizer.step();
    last = loss.item<double>();
    if (step == 0) first = last;
  }
  std::printf("rank %d of %d: loss %.3f, then %.3f\n", world.rank(), world.size(), first, last);
  tessera::save(dir, fsdp::state_dict(model, optimizer), world.ranks());
  {
    torch::NoGradGuard no_grad;
    for (torch::Tensor& parameter : model->parameters()) parameter.zero_();
  }
  tessera::LoadResult result =
      tessera::load(dir, fsdp::state_dict(model, optimizer), world.ranks());
  const double resumed = torch::mse_loss(model->forward(x), y).item<double>();
  std::printf("loaded %zu, missing %zu: loss %.3f\n", result.loaded.size(), result.missing.size(),
              resumed);
  return last < first && resumed < first && result.missing.empty() ? 0 : 1;
}

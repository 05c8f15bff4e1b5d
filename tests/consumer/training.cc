// A user's training program: a module of his own, sharded, trained.
#include <tessera/fsdp.h>
#include <torch/torch.h>

#include <cstdio>

namespace fsdp = tessera::fsdp;

struct BlockImpl : torch::nn::Module {
  BlockImpl() : linear(register_module("linear", torch::nn::Linear(8, 8))) {}
  torch::Tensor forward(torch::Tensor x) { return x + torch::relu(linear->forward(x)); }
  torch::nn::Linear linear;
};
FSDP_MODULE(Block);

struct NetImpl : torch::nn::Module {
  NetImpl() {
    for (int i = 0; i < 2; ++i) blocks.push_back(register_module("block" + std::to_string(i), Block()));
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

int main() {
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
  return last < first ? 0 : 1;
}

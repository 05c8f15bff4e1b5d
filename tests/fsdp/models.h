#pragma once
// Small models and a training loop that runs the same on a plain module and on a sharded one.
#include <tessera/fsdp.h>
#include <torch/torch.h>

#include <functional>
#include <mutex>
#include <vector>

namespace tessera::fsdp::test {

/// Two linear layers of odd sizes with a residual.
struct BlockImpl : torch::nn::Module {
  torch::nn::Linear a{nullptr}, b{nullptr};
  BlockImpl(std::int64_t width, std::int64_t hidden)
      : a(register_module("a", torch::nn::Linear(width, hidden))),
        b(register_module("b", torch::nn::Linear(hidden, width))) {}
  torch::Tensor forward(torch::Tensor x) { return x + b->forward(torch::gelu(a->forward(x))); }
};
FSDP_MODULE(Block);

/// Blocks, each a unit, and a head that the root owns.
struct NetImpl : torch::nn::Module {
  std::vector<Block> blocks;
  torch::nn::Linear head{nullptr};
  NetImpl(int depth, std::int64_t width, std::int64_t hidden, std::int64_t out) {
    for (int i = 0; i < depth; ++i)
      blocks.push_back(register_module("blocks" + std::to_string(i), Block(width, hidden)));
    head = register_module("head", torch::nn::Linear(width, out));
  }
  torch::Tensor forward(torch::Tensor x) {
    for (Block& block : blocks) x = block->forward(x);
    return head->forward(x);
  }
};
FSDP_MODULE(Net);

/// The generator is one for the process; ranks are threads.
inline std::mutex& generator_mutex() {
  static std::mutex mutex;
  return mutex;
}

inline Net make_net(int depth = 3, std::int64_t width = 19, std::int64_t hidden = 33, std::int64_t out = 5) {
  std::lock_guard lock(generator_mutex());
  torch::manual_seed(7);
  return Net(depth, width, hidden, out);
}

inline void shard(Net& net, const Options& options) {
  for (Block& block : net->blocks) fully_shard(block, options);
  fully_shard(net, options);
}

struct Data {
  torch::Tensor x, y;
};
inline Data make_data(std::int64_t rows = 24, std::int64_t width = 19, std::int64_t out = 5) {
  std::lock_guard lock(generator_mutex());
  torch::manual_seed(3);
  return {torch::randn({rows, width}), torch::randn({rows, out})};
}
/// Rows of `rank`: the global batch is the same for every world size that divides it.
inline Data part_of(const Data& data, int rank, int world) {
  const std::int64_t rows = data.x.size(0) / world;
  return {data.x.narrow(0, rank * rows, rows), data.y.narrow(0, rank * rows, rows)};
}

/// Mean over the ranks.
inline double mean_loss(const torch::Tensor& loss, Communicator* comm) {
  torch::Tensor value = loss.detach().to(torch::kDouble).reshape({1});
  if (comm != nullptr && comm->size() > 1) comm->all_reduce(value, Reduce::kAverage, {});
  return value.item<double>();
}

}  // namespace tessera::fsdp::test

#pragma once
// A stack of two-layer blocks, whole, and cut over a tensor dim.
#include <tessera/fsdp.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include "tests/fsdp/models.h"

namespace tessera::fsdp::test {

inline constexpr std::int64_t kWidth = 6, kHidden = 8, kOut = 3;

struct PlainBlockImpl : torch::nn::Module {
  PlainBlockImpl()
      : norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})))),
        up(register_module("up", torch::nn::Linear(kWidth, kHidden))),
        down(register_module("down", torch::nn::Linear(kHidden, kWidth))) {}
  torch::Tensor forward(torch::Tensor x) {
    return x + down->forward(torch::gelu(up->forward(norm->forward(x))));
  }
  torch::nn::LayerNorm norm;
  torch::nn::Linear up, down;
};
TORCH_MODULE(PlainBlock);

struct CutBlockImpl : torch::nn::Module {
  explicit CutBlockImpl(const DeviceMesh& tensor)
      : norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})))),
        up(register_module("up", ColumnParallelLinear(kWidth, kHidden, tensor))),
        down(register_module("down", RowParallelLinear(kHidden, kWidth, tensor))) {}
  torch::Tensor forward(torch::Tensor x) {
    return x + down->forward(torch::gelu(up->forward(norm->forward(x))));
  }
  torch::nn::LayerNorm norm;
  ColumnParallelLinear up;
  RowParallelLinear down;
};
FSDP_MODULE(CutBlock);

template <class Block>
struct StackImpl : torch::nn::Module {
  template <class... Args>
  explicit StackImpl(const Args&... args) {
    for (int i = 0; i < 2; ++i)
      blocks.push_back(register_module("b" + std::to_string(i), Block(args...)));
    head = register_module("head", torch::nn::Linear(kWidth, kOut));
  }
  torch::Tensor forward(torch::Tensor x) {
    for (Block& block : blocks) x = block->forward(x);
    return head->forward(x);
  }
  std::vector<Block> blocks;
  torch::nn::Linear head{nullptr};
};
using PlainStackImpl = StackImpl<PlainBlock>;
TORCH_MODULE(PlainStack);
using CutStackImpl = StackImpl<CutBlock>;
FSDP_MODULE(CutStack);

/// Equal values every time, whatever the number of tensor ranks.
inline PlainStack make_plain_stack() {
  const std::lock_guard lock(generator_mutex());
  torch::manual_seed(5);
  return PlainStack();
}
inline CutStack make_cut_stack(const DeviceMesh& tensor) {
  const std::lock_guard lock(generator_mutex());
  torch::manual_seed(5);
  return CutStack(tensor);
}

/// Blocks and the stack: cut over the last dim of `mesh`, sharded over the one before it,
/// replicated over the first of three.
inline void shard_cut(CutStack& net, const DeviceMesh& mesh, MemoryLayout layout) {
  Options options;
  if (mesh.ndim() == 3) options.strategy = ShardingStrategy::kHybridShard;
  options.mesh = mesh.ndim() == 3 ? mesh.sub({0, 1}) : mesh.sub(0);
  options.extension = tensor_parallel(mesh.sub(mesh.ndim() - 1));
  options.layout = layout;
  for (CutBlock& block : net->blocks) fully_shard(block, options);
  fully_shard(net, options);
}

}  // namespace tessera::fsdp::test

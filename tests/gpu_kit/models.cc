#include "tests/gpu_kit/models.h"

#include "tests/gpu_kit/staged_comm.h"

namespace tessera::gpu_kit {

namespace {

constexpr std::int64_t kWidth = 19, kHidden = 33, kOut = 5, kRows = 24, kMicrobatches = 4;
constexpr int kSmallMatrices = 10;
constexpr std::int64_t kSmallWidth = 32;

torch::nn::LayerNorm layer_norm(std::int64_t width) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({width}));
}

}  // namespace

BlockImpl::BlockImpl(std::int64_t width, std::int64_t hidden)
    : a(register_module("a", torch::nn::Linear(width, hidden))),
      b(register_module("b", torch::nn::Linear(hidden, width))) {}

torch::Tensor BlockImpl::forward(torch::Tensor x) {
  const c10::Device device = x.device();
  be_late(device);
  torch::Tensor inner = torch::gelu(a->forward(x));
  if (inner.requires_grad())
    inner.register_hook([device](const torch::Tensor&) { be_late(device); });
  return x + b->forward(inner);
}

NetImpl::NetImpl(bool with_spare) {
  stem = register_module("stem", torch::nn::Linear(kWidth, kWidth));
  for (int i = 0; i < 3; ++i)
    blocks.push_back(register_module("blocks" + std::to_string(i), Block(kWidth, kHidden)));
  head = register_module("head", torch::nn::Linear(kWidth, kOut));
  if (with_spare) spare = register_module("spare", torch::nn::Linear(7, 7));
}

torch::Tensor NetImpl::forward(torch::Tensor x) {
  x = stem->forward(x);
  for (Block& block : blocks)
    x = recompute
            ? fsdp::checkpoint([block](torch::Tensor in) mutable { return block->forward(in); }, x)
            : block->forward(x);
  return head->forward(x);
}

Net make_net(bool with_spare) {
  torch::manual_seed(7);
  return Net(with_spare);
}

void shard(Net& net, const fsdp::Options& options) {
  for (Block& block : net->blocks) fsdp::fully_shard(block, options);
  fsdp::fully_shard(net, options);
}

Data microbatch(int which) {
  torch::manual_seed(3);
  const Data all{torch::randn({kRows * kMicrobatches, kWidth}),
                 torch::randn({kRows * kMicrobatches, kOut})};
  return {all.x.narrow(0, which * kRows, kRows), all.y.narrow(0, which * kRows, kRows)};
}

Data microbatch(int which, const fsdp::World& world, torch::Device device) {
  const Data all = microbatch(which);
  const std::int64_t rows = kRows / world.size();
  return {all.x.narrow(0, world.rank() * rows, rows).to(device),
          all.y.narrow(0, world.rank() * rows, rows).to(device)};
}

SmallUnitImpl::SmallUnitImpl() {
  for (int i = 0; i < kSmallMatrices; ++i)
    matrices.push_back(
        register_parameter("w" + std::to_string(i), torch::randn({kSmallWidth, kSmallWidth})));
}

torch::Tensor SmallUnitImpl::forward(torch::Tensor x) {
  for (const torch::Tensor& matrix : matrices) x = x * matrix.select(0, 0);
  return x;
}

ManyImpl::ManyImpl(int count) {
  for (int i = 0; i < count; ++i)
    units.push_back(register_module("u" + std::to_string(i), SmallUnit()));
  scale = register_parameter("scale", torch::ones({1}));
}

torch::Tensor ManyImpl::forward(torch::Tensor x) {
  for (SmallUnit& unit : units) x = unit->forward(x);
  return x * scale;
}

StackImpl::StackImpl(int count, std::int64_t width) {
  const auto options = torch::nn::LinearOptions(width, width).bias(false);
  for (int i = 0; i < count; ++i)
    layers.push_back(
        register_module("l" + std::to_string(i), fsdp::Holder<torch::nn::LinearImpl>(options)));
  scale = register_parameter("scale", torch::ones({1}));
}

torch::Tensor StackImpl::forward(torch::Tensor x) {
  for (auto& layer : layers) x = layer->forward(x);
  return x * scale;
}

GptBlockImpl::GptBlockImpl(const GptSize& size)
    : heads(size.heads),
      n1(register_module("n1", layer_norm(size.width))),
      n2(register_module("n2", layer_norm(size.width))),
      qkv(register_module("qkv", torch::nn::Linear(size.width, 3 * size.width))),
      out(register_module("out", torch::nn::Linear(size.width, size.width))),
      up(register_module("up", torch::nn::Linear(size.width, 4 * size.width))),
      down(register_module("down", torch::nn::Linear(4 * size.width, size.width))) {}

torch::Tensor GptBlockImpl::forward(torch::Tensor x) {
  const std::int64_t rows = x.size(0), length = x.size(1), width = x.size(2);
  const torch::Tensor parts = qkv->forward(n1->forward(x))
                                  .view({rows, length, 3, heads, width / heads})
                                  .permute({2, 0, 3, 1, 4});
  const torch::Tensor mixed =
      at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, true);
  x = x + out->forward(mixed.transpose(1, 2).reshape({rows, length, width}));
  return x + down->forward(torch::gelu(up->forward(n2->forward(x))));
}

GptImpl::GptImpl(const GptSize& size) {
  tokens = register_module("tokens", torch::nn::Embedding(size.vocabulary, size.width));
  positions = register_module("positions", torch::nn::Embedding(size.context, size.width));
  for (std::int64_t i = 0; i < size.layers; ++i)
    blocks.push_back(register_module("block" + std::to_string(i), GptBlock(size)));
  norm = register_module("norm", layer_norm(size.width));
  head = register_module(
      "head", torch::nn::Linear(torch::nn::LinearOptions(size.width, size.vocabulary).bias(false)));
}

torch::Tensor GptImpl::forward(torch::Tensor ids) {
  torch::Tensor x =
      tokens->forward(ids) + positions->forward(torch::arange(ids.size(1), ids.options()));
  for (GptBlock& block : blocks) x = block->forward(x);
  return head->forward(norm->forward(x));
}

}  // namespace tessera::gpu_kit

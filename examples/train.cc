// Trains a small character-level transformer on text files, fully sharded over however many
// processes there are.
//
//   train FILE...                        one process
//   RANK=.. WORLD_SIZE=.. MASTER_ADDR=.. MASTER_PORT=.. train FILE...    as torchrun starts them
//
// The global batch and the initial values depend on the step and the parameter alone, not on the
// number of processes: the loss curve is the same for any.
#include <tessera/base/error.h>
#include <tessera/fsdp.h>
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

namespace fsdp = tessera::fsdp;

namespace {

constexpr std::int64_t kContext = 32, kWidth = 48, kHeads = 4, kBlocks = 2, kBatch = 12,
                       kSteps = 60;

struct BlockImpl : torch::nn::Module {
  torch::nn::LayerNorm norm1{nullptr}, norm2{nullptr};
  torch::nn::Linear qkv{nullptr}, out{nullptr}, up{nullptr}, down{nullptr};
  BlockImpl() {
    norm1 = register_module("norm1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    norm2 = register_module("norm2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    qkv = register_module("qkv", torch::nn::Linear(kWidth, 3 * kWidth));
    out = register_module("out", torch::nn::Linear(kWidth, kWidth));
    up = register_module("up", torch::nn::Linear(kWidth, 4 * kWidth));
    down = register_module("down", torch::nn::Linear(4 * kWidth, kWidth));
  }
  torch::Tensor forward(torch::Tensor x) {
    const std::int64_t batch = x.size(0), length = x.size(1);
    auto parts = qkv->forward(norm1->forward(x))
                     .view({batch, length, 3, kHeads, kWidth / kHeads})
                     .permute({2, 0, 3, 1, 4});
    auto attended =
        at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, /*is_causal=*/true);
    x = x + out->forward(attended.transpose(1, 2).reshape({batch, length, kWidth}));
    return x + down->forward(torch::gelu(up->forward(norm2->forward(x))));
  }
};
FSDP_MODULE(Block);

struct TransformerImpl : torch::nn::Module {
  torch::nn::Embedding characters{nullptr}, places{nullptr};
  std::vector<Block> blocks;
  torch::nn::Linear head{nullptr};
  TransformerImpl() {
    characters = register_module("characters", torch::nn::Embedding(256, kWidth));
    places = register_module("places", torch::nn::Embedding(kContext, kWidth));
    for (std::int64_t i = 0; i < kBlocks; ++i)
      blocks.push_back(register_module("block" + std::to_string(i), Block()));
    head = register_module("head", torch::nn::Linear(kWidth, 256));
  }
  torch::Tensor forward(torch::Tensor text) {
    auto x = characters->forward(text) + places->forward(torch::arange(text.size(1)));
    for (Block& block : blocks) x = block->forward(x);
    return head->forward(x);
  }
};
FSDP_MODULE(Transformer);

std::string read(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) tessera::fail(tessera::Code::kNotFound, "cannot read " + path);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// Row `row` of step `step`'s batch: kContext characters and the one after each.
void fill(const std::string& text, std::int64_t step, std::int64_t row, torch::Tensor& inputs,
          torch::Tensor& targets, std::int64_t at) {
  std::mt19937_64 random(static_cast<std::uint64_t>(step * kBatch + row));
  const std::size_t begin = random() % (text.size() - kContext - 1);
  for (std::int64_t i = 0; i < kContext; ++i) {
    inputs[at][i] = static_cast<unsigned char>(text[begin + static_cast<std::size_t>(i)]);
    targets[at][i] = static_cast<unsigned char>(text[begin + static_cast<std::size_t>(i) + 1]);
  }
}

void train(const std::string& text) {
  fsdp::World world = fsdp::init_from_env();
  if (kBatch % world.size() != 0)
    tessera::fail(tessera::Code::kInvalidArgument,
                  "the number of processes must divide " + std::to_string(kBatch));
  torch::manual_seed(1);
  Transformer model;
  fsdp::Options options;
  options.mesh = world.mesh();
  for (Block& block : model->blocks) fsdp::fully_shard(block, options);
  fsdp::fully_shard(model, options);
  fsdp::FusedAdamW optimizer(model->parameters(), torch::optim::AdamWOptions(3e-3));

  const std::int64_t rows = kBatch / world.size();
  for (std::int64_t step = 0; step < kSteps; ++step) {
    auto inputs = torch::empty({rows, kContext}, torch::kLong),
         targets = torch::empty({rows, kContext}, torch::kLong);
    for (std::int64_t row = 0; row < rows; ++row)
      fill(text, step, world.rank() * rows + row, inputs, targets, row);
    optimizer.zero_grad();
    auto loss =
        torch::cross_entropy_loss(model->forward(inputs).view({-1, 256}), targets.view({-1}));
    loss.backward();
    fsdp::clip_grad_norm_(model, 1.0);
    optimizer.step();
    auto mean = loss.detach().reshape({1});
    if (world.size() > 1) world.communicator()->all_reduce(mean, fsdp::Reduce::kAverage, {});
    if (world.rank() == 0 && (step % 10 == 0 || step + 1 == kSteps)) {
      const double value = mean.item<double>();
      std::printf("step %3lld  loss %.4f  %s\n", static_cast<long long>(step), value,
                  std::string(static_cast<std::size_t>(value * 10), '#').c_str());
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    std::string text;
    for (int i = 1; i < argc; ++i) text += read(argv[i]);
    if (text.size() < 1000)
      tessera::fail(tessera::Code::kInvalidArgument, "give text files of 1,000 characters or more");
    at::set_num_threads(1);
    train(text);
    return 0;
  } catch (const tessera::Error& error) {
    std::cerr << "train: " << error.what() << '\n';
    if (!error.status().hint.empty()) std::cerr << error.status().hint << '\n';
    return 2;
  }
}

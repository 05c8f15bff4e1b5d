#pragma once
// The models that the kit trains, on a sharded side and on a plain one.
#include <tessera/fsdp.h>
#include <torch/torch.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::gpu_kit {

// ---- a small net of odd sizes, for values ----

/// Two linear layers with a residual; where ranks are late, so is its compute, in both directions.
struct BlockImpl : torch::nn::Module {
  torch::nn::Linear a{nullptr}, b{nullptr};
  BlockImpl(std::int64_t width, std::int64_t hidden);
  torch::Tensor forward(torch::Tensor x);
};
FSDP_MODULE(Block);

/// Blocks, each a unit, between a stem and a head that the root owns; `spare` is used by nobody.
struct NetImpl : torch::nn::Module {
  torch::nn::Linear stem{nullptr}, head{nullptr}, spare{nullptr};
  std::vector<Block> blocks;
  bool recompute = false;  // blocks keep no activations
  explicit NetImpl(bool with_spare);
  torch::Tensor forward(torch::Tensor x);
};
FSDP_MODULE(Net);

/// The same values every time.
Net make_net(bool with_spare = false);
void shard(Net& net, const fsdp::Options& options);

struct Data {
  torch::Tensor x, y;
};
/// Microbatch `which`, of 24 rows; the whole, or the rows of one rank.
Data microbatch(int which);
Data microbatch(int which, const fsdp::World& world, torch::Device device);

// ---- many small units, for what a unit costs the host ----

/// Ten matrices, of which forward reads a row each: nearly all of its time is launching.
struct SmallUnitImpl : torch::nn::Module {
  std::vector<torch::Tensor> matrices;
  SmallUnitImpl();
  torch::Tensor forward(torch::Tensor x);
};
FSDP_MODULE(SmallUnit);

/// The root owns a parameter, as roots do: where it owns none, everything runs on one stream.
struct ManyImpl : torch::nn::Module {
  std::vector<SmallUnit> units;
  torch::Tensor scale;
  explicit ManyImpl(int count);
  torch::Tensor forward(torch::Tensor x);
};
FSDP_MODULE(Many);

// ---- equal matrices, a unit each, for memory ----

struct StackImpl : torch::nn::Module {
  std::vector<fsdp::Holder<torch::nn::LinearImpl>> layers;
  torch::Tensor scale;
  StackImpl(int count, std::int64_t width);
  torch::Tensor forward(torch::Tensor x);
};
FSDP_MODULE(Stack);

// ---- a GPT, for speed ----

struct GptSize {
  std::int64_t layers = 24, width = 1280, heads = 20, vocabulary = 32768, context = 1024;
};

struct GptBlockImpl : torch::nn::Module {
  std::int64_t heads;
  torch::nn::LayerNorm n1{nullptr}, n2{nullptr};
  torch::nn::Linear qkv{nullptr}, out{nullptr}, up{nullptr}, down{nullptr};
  explicit GptBlockImpl(const GptSize& size);
  torch::Tensor forward(torch::Tensor x);
};
FSDP_MODULE(GptBlock);

struct GptImpl : torch::nn::Module {
  torch::nn::Embedding tokens{nullptr}, positions{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear head{nullptr};
  std::vector<GptBlock> blocks;
  explicit GptImpl(const GptSize& size);
  torch::Tensor forward(torch::Tensor ids);
};
FSDP_MODULE(Gpt);

}  // namespace tessera::gpu_kit

// One rank of a small GPT's training, as bench/fsdp_gpt.py starts it beside the same one in PyTorch: prints
// what a step takes and the losses, as JSON.
//
//   fsdp_gpt MODE INIT LAYERS ROWS STEPS    MODE: plain, plain_bf16, full, full_beside (with a
//                                           communication thread), grad_op, bf16 or bf16_offload;
//                                           INIT: the checkpoint of the initial values
#include <tessera/base/error.h>
#include <tessera/fsdp.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

namespace fsdp = tessera::fsdp;

namespace {

constexpr std::int64_t kWidth = 256, kHeads = 8, kWords = 512, kContext = 64;

struct BlockImpl : torch::nn::Module {
  torch::nn::LayerNorm n1{nullptr}, n2{nullptr};
  torch::nn::Linear qkv{nullptr}, out{nullptr}, up{nullptr}, down{nullptr};
  BlockImpl() {
    const torch::nn::LayerNormOptions norm({kWidth});
    n1 = register_module("n1", torch::nn::LayerNorm(norm));
    n2 = register_module("n2", torch::nn::LayerNorm(norm));
    qkv = register_module("qkv", torch::nn::Linear(kWidth, 3 * kWidth));
    out = register_module("out", torch::nn::Linear(kWidth, kWidth));
    up = register_module("up", torch::nn::Linear(kWidth, 4 * kWidth));
    down = register_module("down", torch::nn::Linear(4 * kWidth, kWidth));
  }
  torch::Tensor forward(torch::Tensor x) {
    const std::int64_t b = x.size(0), t = x.size(1);
    const torch::Tensor p = qkv->forward(n1->forward(x))
                                .view({b, t, 3, kHeads, kWidth / kHeads})
                                .permute({2, 0, 3, 1, 4});
    const torch::Tensor a = at::scaled_dot_product_attention(p[0], p[1], p[2], {}, 0.0, true);
    x = x + out->forward(a.transpose(1, 2).reshape({b, t, kWidth}));
    return x + down->forward(torch::gelu(up->forward(n2->forward(x))));
  }
};
FSDP_MODULE(Block);

struct GptImpl : torch::nn::Module {
  torch::nn::Embedding tok{nullptr}, pos{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear head{nullptr};
  std::vector<Block> blocks;
  explicit GptImpl(int layers) {
    tok = register_module("tok", torch::nn::Embedding(kWords, kWidth));
    pos = register_module("pos", torch::nn::Embedding(kContext, kWidth));
    for (int i = 0; i < layers; ++i)
      blocks.push_back(register_module("block" + std::to_string(i), Block()));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    head = register_module("head",
                           torch::nn::Linear(torch::nn::LinearOptions(kWidth, kWords).bias(false)));
  }
  torch::Tensor forward(torch::Tensor ids) {
    torch::Tensor x = tok->forward(ids) + pos->forward(torch::arange(ids.size(1)));
    for (Block& block : blocks) x = block->forward(x);
    return head->forward(norm->forward(x));
  }
};
FSDP_MODULE(Gpt);

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

fsdp::Options options_of(const std::string& mode, const fsdp::World& world) {
  fsdp::Options options;
  options.mesh = world.mesh();
  if (mode == "grad_op") options.strategy = fsdp::ShardingStrategy::kShardGradOp;
  if (mode.starts_with("bf16")) {
    options.mixed_precision.param_dtype = torch::kBFloat16;
    options.mixed_precision.reduce_dtype = torch::kFloat;
  }
  options.cpu_offload.offload_params = mode == "bf16_offload";
  options.communication_thread = mode == "full_beside";
  return options;
}

/// What loading took does not count.
void forget_peak() { std::ofstream("/proc/self/clear_refs") << 5; }
/// KiB of memory at most since then.
long peak_memory() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;)
    if (long kib = 0; word == "VmHWM:" && status >> kib) return kib;
  return 0;
}

double median(std::vector<double> of) {
  std::sort(of.begin(), of.end());
  return of[of.size() / 2];
}

/// What this rank trains on in `step`, and one word more.
torch::Tensor words(int step, int rank, int ranks, std::int64_t rows) {
  const std::int64_t first = (static_cast<std::int64_t>(step) * ranks + rank) * rows * kContext;
  const torch::Tensor at = torch::arange(first, first + rows * kContext + 1);
  return (at * 7 + at.div(11, "floor") * 5).remainder(kWords);
}

struct Spent {
  std::vector<double> wall, cpu, losses;
};

Spent train(Gpt& model, const std::string& mode, const fsdp::World& world, std::int64_t rows,
            int steps) {
  const bool plain = mode.starts_with("plain");
  fsdp::FusedAdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-3));
  Spent spent;
  for (int step = 0; step < steps; ++step) {
    const torch::Tensor text = words(step, world.rank(), world.size(), rows);
    const double wall = wall_seconds(), cpu = cpu_seconds();
    optimizer.zero_grad();
    const torch::Tensor logits =
        model->forward(text.narrow(0, 0, rows * kContext).view({rows, kContext}));
    const torch::Tensor loss = torch::nn::functional::cross_entropy(
        logits.to(torch::kFloat).view({-1, kWords}), text.narrow(0, 1, rows * kContext));
    loss.backward();
    if (plain)
      torch::nn::utils::clip_grad_norm_(model->parameters(), 1.0);
    else
      fsdp::clip_grad_norm_(model, 1.0);
    optimizer.step();
    spent.wall.push_back(wall_seconds() - wall);
    spent.cpu.push_back(cpu_seconds() - cpu);
    spent.losses.push_back(loss.item<double>());
  }
  return spent;
}

void run(const std::string& mode, const std::string& init, int layers, std::int64_t rows,
         int steps) {
  fsdp::World world = fsdp::init_from_env();
  Gpt model(layers);
  if (!mode.starts_with("plain")) {
    const fsdp::Options options = options_of(mode, world);
    for (Block& block : model->blocks) fsdp::fully_shard(block, options);
    fsdp::fully_shard(model, options);
  }
  tessera::load(init, fsdp::state_dict(model), world.ranks());
  if (mode == "plain_bf16") model->to(torch::kBFloat16);
  forget_peak();
  Spent spent = train(model, mode, world, rows, steps);
  const std::size_t warm = spent.wall.size() / 3;  // not counted
  std::printf("{\"wall\": %.6f, \"cpu\": %.6f, \"rss\": %ld, \"losses\": [",
              median({spent.wall.begin() + static_cast<std::ptrdiff_t>(warm), spent.wall.end()}),
              median({spent.cpu.begin() + static_cast<std::ptrdiff_t>(warm), spent.cpu.end()}),
              peak_memory());
  for (std::size_t i = 0; i < spent.losses.size(); ++i)
    std::printf("%s%.8f", i ? ", " : "", spent.losses[i]);
  std::printf("]}\n");
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 6) {
    std::cerr << "usage: fsdp_gpt MODE INIT LAYERS ROWS STEPS\n";
    return 2;
  }
  torch::set_num_threads(1);
  run(argv[1], argv[2], std::atoi(argv[3]), std::atol(argv[4]), std::atoi(argv[5]));
  return 0;
} catch (const std::exception& error) {
  std::cerr << "fsdp_gpt: " << error.what() << '\n';
  return 1;
}

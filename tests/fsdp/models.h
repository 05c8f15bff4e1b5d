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

/// Blocks, each a unit, between a stem and a head that the root owns.
struct NetImpl : torch::nn::Module {
  torch::nn::Linear stem{nullptr};
  std::vector<Block> blocks;
  torch::nn::Linear head{nullptr};
  NetImpl(int depth, std::int64_t width, std::int64_t hidden, std::int64_t out) {
    stem = register_module("stem", torch::nn::Linear(width, width));
    for (int i = 0; i < depth; ++i)
      blocks.push_back(register_module("blocks" + std::to_string(i), Block(width, hidden)));
    head = register_module("head", torch::nn::Linear(width, out));
  }
  torch::Tensor forward(torch::Tensor x) {
    x = stem->forward(x);
    for (Block& block : blocks) x = block->forward(x);
    return head->forward(x);
  }
};
FSDP_MODULE(Net);

/// LibTorch's default generator is one for the process, and ranks are threads: held while it is
/// seeded and used.
std::mutex& generator_mutex();

/// The same values every time.
Net make_net(int depth = 3, std::int64_t width = 19, std::int64_t hidden = 33,
             std::int64_t out = 5);
/// Every block and the net itself.
void shard(Net& net, const Options& options);

struct Data {
  torch::Tensor x, y;
};
Data make_data(std::int64_t rows = 24, std::int64_t width = 19, std::int64_t out = 5);
/// Rows of `rank`: the global batch is the same for every world size that divides it.
Data part_of(const Data& data, int rank, int world);

/// For ranks that are threads, where Catch's own macros are not safe: throws, naming expression and
/// place, which run_threads passes on.
void rank_check(bool holds, const char* expression, const char* file, int line,
                const std::string& context);
#define RANK_CHECK(condition, ...)                                                                \
  ::tessera::fsdp::test::rank_check(static_cast<bool>(condition), #condition, __FILE__, __LINE__, \
                                    std::string(__VA_ARGS__))

/// What `f` throws, with the hint; "" when it does not.
std::string message_of(const std::function<void()>& f);

/// Mean over the ranks.
double mean_loss(const torch::Tensor& loss, Communicator* comm);

}  // namespace tessera::fsdp::test

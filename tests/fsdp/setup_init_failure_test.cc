// A param_init_fn that throws, on one rank or on all: every rank is told, and the call can be made
// again.
#include <fmt/format.h>

#include <stdexcept>

#include "tests/fsdp/models.h"
#include "tests/fsdp/torch_and_catch.h"

namespace setup_init_failure_test {

namespace fsdp = tessera::fsdp;
using namespace tessera::fsdp::test;
using tessera::fsdp::Options;
using tessera::fsdp::World;

namespace {

/// A different value for each tensor, the same on every rank.
void fill(torch::nn::Module& module) {
  double value = static_cast<double>(module.name().size());
  for (torch::Tensor& param : module.parameters(false)) param.fill_(value += 0.5);
  for (torch::Tensor& buffer : module.buffers(false)) buffer.fill_(value += 0.5);
}

Net make_blank() {
  const fsdp::MetaInit meta;
  return Net(2, 8, 8, 4);
}

bool all_meta(Net& net) {
  for (const torch::Tensor& param : net->parameters())
    if (!param.is_meta()) return false;
  return true;
}

void check_values(Net& net, Net& want) {
  const fsdp::SummonFullParams full(net);
  const auto theirs = want->named_parameters();
  for (const auto& param : net->named_parameters())
    RANK_CHECK(torch::equal(param.value(), theirs[param.key()]), param.key());
}

Net filled() {
  Net net(2, 8, 8, 4);
  const torch::NoGradGuard no_grad;
  for (const auto& module : net->modules()) fill(*module);
  return net;
}

}  // namespace

TEST_CASE("an init function that throws leaves every rank as it was", "[setup][meta]") {
  const bool all = GENERATE(false, true);
  const bool hybrid = GENERATE(false, true);
  const bool sync = GENERATE(false, true);
  const char* backend = GENERATE("threads", "gloo");
  CAPTURE(all, hybrid, sync, backend);
  fsdp::WorldOptions world_options;
  world_options.backend = backend;
  Net want = filled();
  fsdp::run_threads(
      4,
      [&](World& world) {
        Net net = make_blank();
        Options options;
        options.mesh =
            hybrid ? fsdp::DeviceMesh(world, {2, 2}, {"replicate", "shard"}) : world.mesh();
        if (hybrid) options.strategy = fsdp::ShardingStrategy::kHybridShard;
        options.sync_module_states = sync;
        const bool throws = all || world.rank() == 2;
        int calls = 0;
        options.param_init_fn = [&](torch::nn::Module& module) {
          fill(module);
          if (++calls == 3 && throws) throw std::out_of_range("no such file of weights");
        };
        const std::string message = message_of([&] { fsdp::fully_shard(net, options); });
        RANK_CHECK(message.find("no such file of weights") != std::string::npos, message);
        if (!throws) {
          RANK_CHECK(message.find("rank 2") != std::string::npos, message);
          RANK_CHECK(message.find("call it again on every rank") != std::string::npos, message);
        }
        RANK_CHECK(all_meta(net));

        calls = 10;  // from now on it works
        fsdp::fully_shard(net, options);
        RANK_CHECK(calls > 13);  // for what had been filled before, too
        check_values(net, want);
        net->forward(torch::ones({2, 8})).sum().backward();
        for (const torch::Tensor& param : net->parameters()) RANK_CHECK(param.grad().defined());
      },
      world_options);
}

TEST_CASE("a module of which an init function left a part unwritten can be sharded again",
          "[setup][meta]") {
  fsdp::run_threads(2, [](World& world) {
    Net net = make_blank(), want = filled();
    Options options;
    options.mesh = world.mesh();
    bool complete = world.rank() == 1;
    options.param_init_fn = [&](torch::nn::Module& module) {
      fill(module);
      if (!complete)
        for (torch::Tensor& param : module.parameters(false))
          param.detach().view(torch::kInt).fill_(-1);
    };
    const std::string message = message_of([&] { fsdp::fully_shard(net, options); });
    RANK_CHECK(message.find("unwritten") != std::string::npos, message);
    RANK_CHECK(all_meta(net));
    complete = true;
    fsdp::fully_shard(net, options);
    check_values(net, want);
  });
}

TEST_CASE("auto_wrap that failed half-way is told of at the next call, and can be finished by hand",
          "[setup][meta]") {
  fsdp::run_threads(2, [](World& world) {
    Net net = make_blank(), want = filled();
    Options options;
    options.mesh = world.mesh();
    int calls = 0;
    options.param_init_fn = [&](torch::nn::Module& module) {
      if (++calls == 3 && world.rank() == 0) throw std::runtime_error("disk full");
      fill(module);
    };
    const auto policy = fsdp::WrapPolicy::types<Block>();
    const auto wrap = [&] { fsdp::auto_wrap(net, policy, options); };
    RANK_CHECK(message_of(wrap).find("disk full") != std::string::npos);
    const std::string message = message_of(wrap);
    RANK_CHECK(message.find("blocks0") != std::string::npos, message);
    RANK_CHECK(message.find("failed half-way") != std::string::npos, message);
    fsdp::fully_shard(net->blocks[1], options);
    fsdp::fully_shard(net, options);
    check_values(net, want);
  });
}

}  // namespace setup_init_failure_test

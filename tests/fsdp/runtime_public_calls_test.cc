// What FSDP2's users call on units beside forward and backward: gathering and freeing by hand, units
// whose backward needs no parameters, microbatches, gathers and reductions of one's own, streams that
// several trees share.
#include <fmt/format.h>

#include "fsdp_core/runtime/root.h"
#include "tests/fsdp/full_gradients.h"
#include "tests/fsdp/models.h"
#include "tests/fsdp/torch_and_catch.h"

namespace runtime_public_calls_test {

using namespace tessera::fsdp;
using namespace tessera::fsdp::test;
using torch::Tensor;

namespace {

Options over(World& world) {
  Options options;
  options.mesh = world.mesh();
  return options;
}

std::string state_of(Net& net, const std::string& unit) {
  for (const auto& [name, state] : unit_states(net))
    if (name == unit) return state;
  return "";
}

void run_step(Net& net, const Data& data) {
  torch::mse_loss(net->forward(data.x).to(torch::kFloat), data.y).backward();
}

/// An embedding, whose backward reads no values of it, before a block.
struct WordsImpl : torch::nn::Module {
  Holder<torch::nn::EmbeddingImpl> words{nullptr};
  Block block{nullptr};
  WordsImpl() {
    words = register_module("words", Holder<torch::nn::EmbeddingImpl>(11, 6));
    block = register_module("block", Block(6, 8));
  }
  Tensor forward(Tensor ids) { return block->forward(words->forward(ids)); }
};
FSDP_MODULE(Words);

Words make_words() {
  const std::lock_guard lock(generator_mutex());
  torch::manual_seed(9);
  return Words();
}

}  // namespace

TEST_CASE("a unit gathered by hand shows its parameters once it was waited for",
          "[runtime][calls]") {
  const bool async_op = GENERATE(true, false);
  run_threads(2, [&](World& world) {
    Net net = make_net(2), plain = make_net(2);
    shard(net, over(world));
    UnshardHandle handle = unshard(net->blocks[1], async_op);
    RANK_CHECK(state_of(net, "blocks1") ==
               (async_op ? "(Unsharding, Idle, None)" : "(Unsharded, Idle, None)"));
    handle.wait();
    handle.wait();
    RANK_CHECK(state_of(net, "blocks1") == "(Unsharded, Idle, None)");
    RANK_CHECK(torch::equal(net->blocks[1]->a->weight, plain->blocks[1]->a->weight));
    RANK_CHECK(net->blocks[1]->parameters()[0].is_same(net->blocks[1]->a->weight));
    reshard(net->blocks[1]);
    RANK_CHECK(state_of(net, "blocks1") == "(Sharded, Idle, None)");
    const std::string message = message_of([&] { net->blocks[1]->a->weight + 1; });
    RANK_CHECK(message.find("blocks1.a.weight") != std::string::npos, message);
    // And a forward after it gathers once.
    unshard(net->blocks[1]).wait();
    world.communicator()->reset_counts();
    const Data data = make_data();
    run_step(net, data);
    RANK_CHECK(world.communicator()->counts().all_gathers == 2 + 2);
    run_step(plain, data);
    check_full_gradients(net, plain);
  });
}

TEST_CASE("a unit cannot be freed by hand inside its forward", "[runtime][calls]") {
  run_threads(2, [&](World& world) {
    Net net = make_net(1);
    shard(net, over(world));
    const SummonFullParams full(net);
    const std::string message = message_of([&] { reshard(net->blocks[0]); });
    RANK_CHECK(message.find("reshard inside forward, backward or summon") != std::string::npos,
               message);
  });
}

TEST_CASE("an embedding is not gathered for its backward where that is off", "[runtime][calls]") {
  const bool gathers = GENERATE(true, false);
  const auto layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  const auto prefetch = GENERATE(BackwardPrefetch::kPre, BackwardPrefetch::kNone);
  run_threads(2, [&](World& world) {
    Words net = make_words(), plain = make_words();
    Options options = over(world);
    options.layout = layout;
    options.backward_prefetch = prefetch;
    fully_shard(net->words, options);
    fully_shard(net->block, options);
    fully_shard(net, options);
    set_unshard_in_backward(net->words, gathers);
    const Tensor ids = torch::arange(12).remainder(11);
    for (int step = 0; step < 3; ++step) {
      world.communicator()->reset_counts();
      net->forward(ids).square().sum().backward();
      plain->forward(ids).square().sum().backward();
      RANK_CHECK(world.communicator()->counts().all_gathers == (gathers ? 4 : 3));
    }
    check_full_gradients(net, plain);
  });
}

TEST_CASE("a backward that needs what it does not gather fails on all ranks", "[runtime][calls]") {
  run_threads(2, [&](World& world) {
    Net net = make_net(2);
    shard(net, over(world));
    set_unshard_in_backward(net->blocks[1], false);
    const Data data = make_data();
    const std::string message = message_of([&] { run_step(net, data); });
    RANK_CHECK(!message.empty());
  });
}

TEST_CASE("backwards of several forwards keep their order for prefetching until the last",
          "[runtime][calls]") {
  run_threads(2, [&](World& world) {
    Net net = make_net(2), plain = make_net(2);
    shard(net, over(world));
    const Data data = make_data();
    run_step(net, data);
    for (auto& parameter : net->parameters()) parameter.mutable_grad().reset();
    const Tensor first = torch::mse_loss(net->forward(data.x), data.y);
    const Tensor second = torch::mse_loss(net->forward(data.x * 2), data.y);
    set_is_last_backward(net, false);
    second.backward();
    set_is_last_backward(net, true);
    std::string order;
    world.communicator()->observe([&](const CommRecord& record) {
      if (record.phase == CommPhase::kBackward)
        order += (record.op == CommOp::kAllGather ? "AG " : "RS ") + record.unit + " ";
    });
    first.backward();
    world.communicator()->observe({});
    RANK_CHECK(order.find("AG blocks1 AG blocks0 RS blocks1") != std::string::npos, order);
    torch::mse_loss(plain->forward(data.x), data.y).backward();
    torch::mse_loss(plain->forward(data.x * 2), data.y).backward();
    check_full_gradients(net, plain);
  });
}

TEST_CASE("parameters are summoned in the dtype of a forward where that is asked for",
          "[runtime][calls][summon]") {
  const auto layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  const bool on_host = GENERATE(false, true);
  run_threads(3, [&](World& world) {
    Net net = make_net(2), plain = make_net(2);
    Options options = over(world);
    options.layout = layout;
    options.mixed_precision.param_dtype = torch::kBFloat16;
    shard(net, options);
    SummonOptions cast;
    cast.cast = true;
    const std::string message = message_of([&] { const SummonFullParams full(net, cast); });
    RANK_CHECK(message.find("cast with write_back") != std::string::npos, message);
    cast.write_back = false;
    cast.offload_to_cpu = on_host;
    {
      const SummonFullParams full(net, cast);
      for (const auto& param : net->named_parameters())
        RANK_CHECK(torch::equal(param.value(),
                                plain->named_parameters()[param.key()].to(torch::kBFloat16)),
                   param.key());
    }
    // Nothing was rounded by it.
    const SummonFullParams full(net);
    for (const auto& param : net->named_parameters())
      RANK_CHECK(torch::equal(param.value(), plain->named_parameters()[param.key()]), param.key());
  });
}

TEST_CASE("an all-reduce hook sees each reduced gradient before it is divided",
          "[runtime][calls][hooks]") {
  const bool hybrid = GENERATE(false, true);
  run_threads(4, [&](World& world) {
    Net net = make_net(2), plain = make_net(2);
    Options options = over(world);
    if (hybrid) {
      options.mesh = DeviceMesh(world, {2, 2}, {"replicate", "shard"});
      options.strategy = ShardingStrategy::kHybridShard;
    }
    shard(net, options);
    int calls = 0;
    set_all_reduce_hook(net, [&calls](const Tensor& gradient) {
      ++calls;
      gradient.mul_(3);
    });
    const Data data = make_data();
    run_step(net, data);
    RANK_CHECK(calls == 3);
    torch::mse_loss(plain->forward(data.x), data.y).mul(3).backward();
    check_full_gradients(net, plain);
    set_all_reduce_hook(net, nullptr);
    run_step(net, data);
    RANK_CHECK(calls == 3);
  });
}

TEST_CASE("gathers in float8 and bf16 move a quarter and a half of the bytes - shards stay exact",
          "[runtime][calls][hooks]") {
  const bool eighth = GENERATE(true, false);
  const auto layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  run_threads(2, [&](World& world) {
    Net net = make_net(2), plain = make_net(2);
    Options options = over(world);
    options.layout = layout;
    shard(net, options);
    const torch::NoGradGuard evaluation;
    const Data data = make_data();
    const auto gathered_bytes = [&] {
      world.communicator()->reset_counts();
      const Tensor y = net->forward(data.x);
      const double worst = (y - plain->forward(data.x)).abs().max().item<double>();
      RANK_CHECK(worst < 0.2, std::to_string(worst));
      return static_cast<double>(world.communicator()->counts().wire_bytes);
    };
    const double exact = gathered_bytes();
    set_custom_all_gather(net, eighth ? float8_gather_hook() : bf16_gather_hook());
    const double low = gathered_bytes();
    RANK_CHECK(low / exact == Approx(eighth ? 0.25 : 0.5).epsilon(0.01),
               std::to_string(low / exact));
    {
      const SummonFullParams full(net);
      for (const auto& param : net->named_parameters())
        RANK_CHECK(torch::equal(param.value(), plain->named_parameters()[param.key()]),
                   param.key());
    }
    set_custom_all_gather(net, {});
    RANK_CHECK(gathered_bytes() == exact);
  });
}

TEST_CASE("a model trains with gathers in float8 nearly as without", "[runtime][calls][hooks]") {
  run_threads(2, [&](World& world) {
    double losses[2];
    for (const bool low : {false, true}) {
      Net net = make_net(2);
      shard(net, over(world));
      if (low) set_custom_all_gather(net, float8_gather_hook());
      torch::optim::SGD optimizer(net->parameters(), 0.05);
      const Data data = make_data();
      for (int step = 0; step < 20; ++step) {
        optimizer.zero_grad();
        const Tensor loss = torch::mse_loss(net->forward(data.x), data.y);
        loss.backward();
        optimizer.step();
        losses[low] = loss.item<double>();
      }
    }
    RANK_CHECK(losses[1] == Approx(losses[0]).epsilon(0.05),
               fmt::format("{} {}", losses[0], losses[1]));
  });
}

TEST_CASE("ranks that gather in different ways are an error of the first forward",
          "[runtime][calls][hooks]") {
  run_threads(2, [&](World& world) {
    Net net = make_net(1);
    shard(net, over(world));
    if (world.rank() == 1) set_custom_all_gather(net, bf16_gather_hook());
    const Data data = make_data();
    const std::string message = message_of([&] { run_step(net, data); });
    RANK_CHECK(message.find("gather hook: bf16_gather_hook") != std::string::npos, message);
  });
}

TEST_CASE("roots share the streams of the first of them", "[runtime][calls][streams]") {
  struct Counting final : StreamFactory {
    std::shared_ptr<StreamFactory> inner = simulated_streams(3, 200);
    std::vector<std::string> made;
    std::shared_ptr<Stream> compute() override { return inner->compute(); }
    std::shared_ptr<Stream> make(std::string name, bool high_priority) override {
      made.push_back(name);
      return inner->make(std::move(name), high_priority);
    }
  };
  run_threads(2, [&](World& world) {
    const auto streams = std::make_shared<Counting>();
    tessera::fsdp::detail::Root::use_streams(streams);
    Net first = make_net(2), second = make_net(2), plain = make_net(2);
    shard(first, over(world));
    shard(second, over(world));
    share_comm_ctx({first, second});
    RANK_CHECK(message_of([&] { share_comm_ctx({first->blocks[0]}); }).find("not an outermost") !=
               std::string::npos);
    const Data data = make_data();
    for (int step = 0; step < 2; ++step) {
      // As pipeline stages run them: both forwards, then both backwards.
      const Tensor a = torch::mse_loss(first->forward(data.x), data.y);
      const Tensor b = torch::mse_loss(second->forward(data.x), data.y);
      b.backward();
      a.backward();
      torch::mse_loss(plain->forward(data.x), data.y).backward();
    }
    check_full_gradients(first, plain);
    check_full_gradients(second, plain);
    RANK_CHECK(std::ranges::count(streams->made, "gather") == 1,
               std::to_string(std::ranges::count(streams->made, "gather")));
    tessera::fsdp::detail::Root::use_streams(nullptr);
  });
}

}  // namespace runtime_public_calls_test

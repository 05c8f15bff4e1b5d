// Parameters that stay gathered, after a forward or after a backward, are used again only while
// they are those that the optimizer holds, whichever way its class writes: some write through
// data(), which no version counter sees.
#include <fmt/format.h>

#include "tests/fsdp/beside_plain.h"
#include "tests/fsdp/torch_and_catch.h"

namespace runtime_kept_values_test {

using namespace tessera::fsdp;
using namespace tessera::fsdp::test;

namespace {

using SteppingParams = std::vector<torch::Tensor>;

std::shared_ptr<torch::optim::Optimizer> stepping(const std::string& kind,
                                                  const SteppingParams& params) {
  using namespace torch::optim;
  if (kind == "SGD") return std::make_shared<SGD>(params, 0.05);
  if (kind == "SGD with momentum")
    return std::make_shared<SGD>(params, SGDOptions(0.05).momentum(0.9));
  if (kind == "Adagrad") return std::make_shared<Adagrad>(params, 0.05);
  if (kind == "RMSprop") return std::make_shared<RMSprop>(params, 0.01);
  if (kind == "Adam") return std::make_shared<Adam>(params, 0.01);
  return std::make_shared<AdamW>(params, 0.01);
}

std::string any_kind() {
  return GENERATE("SGD", "SGD with momentum", "Adagrad", "RMSprop", "Adam", "AdamW");
}

}  // namespace

TEST_CASE("parameters kept after backward are gathered again after a step of any optimizer",
          "[runtime][kept]") {
  const std::string kind = any_kind();
  const auto layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  const bool low = GENERATE(false, true);
  CAPTURE(kind, layout == MemoryLayout::kFlat, low);
  run_threads(2, [&](World& world) {
    Options options;
    options.mesh = world.mesh();
    options.strategy = ShardingStrategy::kShardGradOp;
    options.layout = layout;
    if (low) options.mixed_precision.param_dtype = torch::kBFloat16;
    Net net = make_net(), twin = make_net();  // the twin keeps nothing
    shard(net, options);
    shard(twin, options);
    set_reshard_after_backward(net, false);
    const Data data = make_data();
    const auto ours = stepping(kind, net->parameters()),
               theirs = stepping(kind, twin->parameters());
    for (int step = 0; step < 4; ++step) {
      const auto loss_of = [&](Net& each) {
        return torch::mse_loss(each->forward(data.x).to(torch::kFloat), data.y);
      };
      ours->zero_grad();
      theirs->zero_grad();
      const torch::Tensor a = loss_of(net), b = loss_of(twin);
      RANK_CHECK(torch::equal(a, b),
                 fmt::format("step {}: {} {}", step, a.item<float>(), b.item<float>()));
      a.backward();
      b.backward();
      ours->step();
      theirs->step();
    }
  });
}

TEST_CASE("parameters kept after forward are gathered again after a step of any optimizer",
          "[runtime][kept]") {
  const std::string kind = any_kind();
  const int parts = GENERATE(0, 2);
  CAPTURE(kind, parts);
  run_threads(4, [&](World& world) {
    Options common;
    if (parts == 0)
      common.strategy = ShardingStrategy::kShardGradOp;
    else
      common.reshard_after_forward = parts;
    auto [options, net, plain, data] = BesidePlain(world, common);
    const auto ours = stepping(kind, net->parameters()),
               theirs = stepping(kind, plain->parameters());
    backward(net, data);
    backward(plain, data);
    for (int step = 0; step < 3; ++step) {
      // Kept for a backward that never comes.
      RANK_CHECK(torch::allclose(net->forward(data.x), plain->forward(data.x), 1e-5, 1e-6),
                 fmt::format("step {}", step));
      ours->step();
      theirs->step();
    }
  });
}

TEST_CASE("without a step kept parameters are used again", "[runtime][kept]") {
  run_threads(2, [](World& world) {
    auto [options, net, plain, data] =
        BesidePlain(world, {.strategy = ShardingStrategy::kShardGradOp});
    const auto optimizer = stepping("SGD", net->parameters());
    set_reshard_after_backward(net, false);
    for (int micro = 0; micro < 3; ++micro) {
      world.communicator()->reset_counts();
      backward(net, data);
      // What clipping and clearing touch are gradients.
      clip_grad_norm_(net, 1.0);
      optimizer->zero_grad();
      RANK_CHECK(world.communicator()->counts().all_gathers == (micro == 0 ? 4 : 0));
    }
  });
}

}  // namespace runtime_kept_values_test

// An optimizer that was built before fully_shard holds the full parameters: its first step is an
// error that names one of them, whichever class it is of. Silently, it would train nothing.
#include <fmt/format.h>

#include "tests/fsdp/models.h"
#include "tests/fsdp/torch_and_catch.h"

namespace runtime_stale_optimizer_test {

using namespace tessera::fsdp;
using namespace tessera::fsdp::test;

namespace {

using Optimizer = std::shared_ptr<torch::optim::Optimizer>;
using Groups = std::vector<torch::optim::OptimizerParamGroup>;

/// An optimizer of the user's own.
struct SignDescent : torch::optim::Optimizer {
  explicit SignDescent(Groups groups)
      : Optimizer(std::move(groups), std::make_unique<torch::optim::SGDOptions>(0.1)) {}
  torch::Tensor step(LossClosure) override {
    const torch::NoGradGuard no_grad;
    for (auto& group : param_groups())
      for (torch::Tensor& param : group.params())
        if (param.grad().defined()) param.sub_(param.grad().sign(), 0.1);
    return {};
  }
};

struct Kind {
  const char* name;
  std::function<Optimizer(Groups)> make;
};

const std::vector<Kind>& kinds() {
  using namespace torch::optim;
  static const std::vector<Kind> all = {
      {"SGD", [](Groups g) { return std::make_shared<SGD>(g, SGDOptions(0.1)); }},
      {"SGD with momentum and decay",
       [](Groups g) {
         return std::make_shared<SGD>(g, SGDOptions(0.1).momentum(0.9).weight_decay(0.1));
       }},
      {"Adam", [](Groups g) { return std::make_shared<Adam>(g, AdamOptions(0.1)); }},
      {"AdamW", [](Groups g) { return std::make_shared<AdamW>(g, AdamWOptions(0.1)); }},
      {"RMSprop", [](Groups g) { return std::make_shared<RMSprop>(g, RMSpropOptions(0.1)); }},
      {"Adagrad", [](Groups g) { return std::make_shared<Adagrad>(g, AdagradOptions(0.1)); }},
      {"FusedAdamW", [](Groups g) { return std::make_shared<FusedAdamW>(g, AdamWOptions(0.1)); }},
      {"of the user", [](Groups g) { return std::make_shared<SignDescent>(g); }},
  };
  return all;
}

void backward(Net& net) {
  const Data data = make_data();
  torch::mse_loss(net->forward(data.x), data.y).backward();
}

std::vector<torch::Tensor> values_of(Net& net) {
  std::vector<torch::Tensor> out;
  for (const torch::Tensor& param : net->parameters()) out.push_back(param.detach().clone());
  return out;
}

void check_refusal(const std::string& message, const std::string& parameter,
                   const std::string& what) {
  RANK_CHECK(message.find("built before fully_shard") != std::string::npos, what + ": " + message);
  RANK_CHECK(message.find(parameter) != std::string::npos, what + ": " + message);
}

}  // namespace

TEST_CASE("an optimizer built too early is refused at its first step", "[runtime][optimizer]") {
  const int size = GENERATE(1, 2);
  const auto layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  const auto strategy = GENERATE(ShardingStrategy::kFullShard, ShardingStrategy::kNoShard);
  CAPTURE(size, layout == MemoryLayout::kFlat, strategy_name(strategy));
  run_threads(size, [&](World& world) {
    for (const Kind& kind : kinds()) {
      Net net = make_net(1);
      const Optimizer early = kind.make({{net->parameters()}});
      Options options;
      options.mesh = world.mesh();
      options.layout = layout;
      options.strategy = strategy;
      shard(net, options);
      // At once, whatever it would do without gradients.
      check_refusal(message_of([&] { early->step(); }), "\"stem.weight\"", kind.name);
      early->zero_grad();
      backward(net);
      const auto before = values_of(net);
      check_refusal(message_of([&] { early->step(); }), "\"stem.weight\"", kind.name);
      // (Where parameters are whole, AdamW has decayed the first when it comes to its gradient.)
      if (size > 1 && strategy != ShardingStrategy::kNoShard) {
        const auto after = values_of(net);
        for (std::size_t i = 0; i < before.size(); ++i)
          RANK_CHECK(torch::equal(before[i], after[i]), kind.name);
      }

      const auto refused = values_of(net);
      const Optimizer good = kind.make({{net->parameters()}});
      good->step();
      const auto trained = values_of(net);
      for (std::size_t i = 0; i < refused.size(); ++i)
        RANK_CHECK(refused[i].numel() == 0 || !torch::equal(refused[i], trained[i]), kind.name);
    }
  });
}

TEST_CASE("one stale group or parameter among others is enough", "[runtime][optimizer]") {
  const std::size_t k = GENERATE(range(std::size_t{0}, std::size_t{8}));
  const Kind& kind = kinds()[k];
  CAPTURE(kind.name);
  run_threads(2, [&](World& world) {
    Options options;
    options.mesh = world.mesh();
    Net net = make_net(2);
    fully_shard(net->blocks[0], options);
    // Shards of the first block, and the full parameters of all others.
    const Optimizer early = kind.make({{net->blocks[0]->parameters()},
                                       {net->blocks[1]->parameters()},
                                       {net->head->parameters()}});
    fully_shard(net->blocks[1], options);
    fully_shard(net, options);
    backward(net);
    check_refusal(message_of([&] { early->step(); }), "\"blocks1.a.weight\"", kind.name);

    Net mixed = make_net(1);
    const torch::Tensor bias = mixed->head->bias;
    shard(mixed, options);
    std::vector<torch::Tensor> params = mixed->parameters();
    params.back() = bias;
    const Optimizer one = kind.make({{params}});
    backward(mixed);
    check_refusal(message_of([&] { one->step(); }), "\"head.bias\"", kind.name);
  });
}

TEST_CASE("L-BFGS built too early is refused at its first step", "[runtime][optimizer]") {
  run_threads(1, [](World&) {
    Net net = make_net(1);
    torch::optim::LBFGS early(net->parameters(), torch::optim::LBFGSOptions(1));
    shard(net, {});
    check_refusal(message_of([&] {
                    early.step([&] {
                      early.zero_grad();
                      const torch::Tensor loss = net->forward(make_data().x).square().mean();
                      loss.backward();
                      return loss;
                    });
                  }),
                  "stem.weight", "L-BFGS");
  });
}

TEST_CASE("gradients are cleared through the module whatever is gathered", "[runtime][optimizer]") {
  const bool none = GENERATE(true, false);
  run_threads(2, [&](World& world) {
    Options options;
    options.mesh = world.mesh();
    options.strategy = ShardingStrategy::kShardGradOp;
    Net net = make_net(1);
    shard(net, options);
    net->zero_grad(none);
    backward(net);
    for (const torch::Tensor& param : net->parameters()) RANK_CHECK(param.grad().defined());
    net->zero_grad(none);
    for (const torch::Tensor& param : net->parameters())
      RANK_CHECK(none ? !param.grad().defined() : param.grad().abs().sum().item<float>() == 0);
    const Data data = make_data();
    const torch::Tensor loss = torch::mse_loss(net->forward(data.x), data.y);
    net->zero_grad(none);  // while parameters are kept for the backward
    loss.backward();
    const SummonFullParams full(net);
    for (const torch::Tensor& param : net->parameters()) RANK_CHECK(!param.grad().defined());
  });
}

}  // namespace runtime_stale_optimizer_test

// Several modules as one unit: one gather for all of them, freed after the last, reduced when all of
// their backwards are over, whatever their order and whichever of them run.
#include <fmt/format.h>

#include "fsdp_core/runtime/root.h"
#include "tests/fsdp/full_gradients.h"
#include "tests/fsdp/models.h"
#include "tests/fsdp/torch_and_catch.h"

namespace runtime_several_modules_test {

using namespace tessera::fsdp;
using namespace tessera::fsdp::test;
using torch::Tensor;

namespace {

struct OutImpl : torch::nn::Module {
  explicit OutImpl(const Tensor& tied)
      : weight(register_parameter("weight", tied)),
        bias(register_parameter("bias", torch::full({tied.size(0)}, 0.25))) {}
  Tensor forward(Tensor x) { return torch::nn::functional::linear(x, weight, bias); }
  Tensor weight, bias;
};
FSDP_MODULE(Out);

/// An embedding whose weight is the last layer's too, blocks between them, and a norm before that.
struct TiedImpl : torch::nn::Module {
  Holder<torch::nn::EmbeddingImpl> words{nullptr};
  std::vector<Block> blocks;
  Holder<torch::nn::LayerNormImpl> norm{nullptr};
  Out out{nullptr};
  bool with_norm = true;
  TiedImpl() {
    words = register_module("words", Holder<torch::nn::EmbeddingImpl>(11, 6));
    for (int i = 0; i < 2; ++i)
      blocks.push_back(register_module("blocks" + std::to_string(i), Block(6, 9)));
    norm =
        register_module("norm", Holder<torch::nn::LayerNormImpl>(torch::nn::LayerNormOptions({6})));
    out = register_module("out", Out(words->weight));
  }
  Tensor forward(Tensor ids) {
    Tensor x = words->forward(ids);
    for (Block& block : blocks) x = block->forward(x);
    return out->forward(with_norm ? norm->forward(x) : x);
  }
};
FSDP_MODULE(Tied);

Tied make_tied() {
  const std::lock_guard lock(generator_mutex());
  torch::manual_seed(4);
  return Tied();
}

void shard(Tied& net, const Options& options) {
  for (Block& block : net->blocks) fully_shard(block, options);
  fully_shard({net->words, net->norm, net->out}, options);
  fully_shard(net, options);
}

Options over(World& world) {
  Options options;
  options.mesh = world.mesh();
  return options;
}

Tensor ids() { return torch::arange(12).remainder(11); }

std::string state_of(Tied& net, const std::string& unit) {
  for (const auto& [name, state] : unit_states(net))
    if (name == unit) return state;
  return "no unit";
}

}  // namespace

TEST_CASE("modules of one unit are gathered once each way and reduced once", "[runtime][several]") {
  const auto layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  const bool kept = GENERATE(false, true);
  const bool ahead = GENERATE(false, true);
  const bool late = GENERATE(false, true);
  run_threads(2, [&](World& world) {
    if (late) tessera::fsdp::detail::Root::use_streams(simulated_streams(5, 100));
    {
      Tied net = make_tied(), plain = make_tied();
      Options options = over(world);
      options.layout = layout;
      options.forward_prefetch = ahead;
      if (kept) options.strategy = ShardingStrategy::kShardGradOp;
      shard(net, options);
      for (int step = 0; step < 3; ++step) {
        world.communicator()->reset_counts();
        net->forward(ids()).square().sum().backward();
        plain->forward(ids()).square().sum().backward();
        const CommCounts counts = world.communicator()->counts();
        RANK_CHECK(counts.all_gathers == (kept ? 3 : 6), std::to_string(counts.all_gathers));
        RANK_CHECK(counts.reduce_scatters == 3, std::to_string(counts.reduce_scatters));
        RANK_CHECK(state_of(net, "words") == "(Sharded, Idle, None)", state_of(net, "words"));
      }
      check_full_gradients(net, plain);
    }
    tessera::fsdp::detail::Root::use_streams(nullptr);
  });
}

TEST_CASE("a unit some of whose modules do not run is freed with the outermost forward",
          "[runtime][several]") {
  const bool gradients = GENERATE(true, false);
  run_threads(2, [&](World& world) {
    Tied net = make_tied(), plain = make_tied();
    shard(net, over(world));
    for (const bool with_norm : {true, false, true}) {
      net->with_norm = plain->with_norm = with_norm;
      world.communicator()->reset_counts();
      const torch::AutoGradMode mode(gradients);
      const Tensor loss = net->forward(ids()).square().sum();
      RANK_CHECK(torch::allclose(loss, plain->forward(ids()).square().sum()));
      RANK_CHECK(world.communicator()->counts().all_gathers == 3);
      RANK_CHECK(state_of(net, "words") == "(Sharded, Idle, None)", state_of(net, "words"));
      if (!gradients) continue;
      loss.backward();
      plain->forward(ids()).square().sum().backward();
    }
    if (gradients) check_full_gradients(net, plain);
  });
}

TEST_CASE("modules of one unit keep the names of the plain model's parameters",
          "[runtime][several]") {
  run_threads(2, [&](World& world) {
    Tied net = make_tied();
    const auto before = make_tied()->named_parameters().keys();
    shard(net, over(world));
    net->forward(ids());
    RANK_CHECK(net->named_parameters().keys() == before);
    const auto says = [&](const Tensor& parameter, const std::string& name) {
      const std::string message = message_of([&] { parameter + 1; });
      RANK_CHECK(message.find("\"" + name + "\"") != std::string::npos, message);
    };
    says(net->norm->bias, "norm.bias");
    says(net->out->bias, "out.bias");
    says(net->words->weight, "words.weight");
    const SummonFullParams full(net);
    const Tied plain = make_tied();
    for (const auto& param : net->named_parameters())
      RANK_CHECK(torch::equal(param.value(), plain->named_parameters()[param.key()]), param.key());
  });
}

TEST_CASE("lists of modules that cannot be one unit are refused", "[runtime][several]") {
  const auto refused = [](const std::function<void(Tied&)>& call) {
    Tied net = make_tied();
    return message_of([&] { call(net); });
  };
  CHECK_THAT(refused([](Tied&) { fully_shard(std::vector<ModuleRef>{}); }),
             Catch::Contains("a list of no modules"));
  CHECK_THAT(refused([](Tied& net) {
               fully_shard({net->blocks[0], net->blocks[0]});
             }),
             Catch::Contains("number 1 of the modules"));
  CHECK_THAT(refused([](Tied& net) {
               fully_shard({net, net->blocks[0]});
             }),
             Catch::Contains("is number 0 or below it"));
  CHECK_THAT(refused([](Tied& net) {
               fully_shard(net->blocks[0]);
               fully_shard({net->norm, net->blocks[0]});
             }),
             Catch::Contains("is a unit already"));
  CHECK_THAT(refused([](Tied& net) {
               fully_shard({net->words, net->out});
               net->words->forward(ids());
             }),
             Catch::Contains("runs outside of the forward of a unit around it"));
}

}  // namespace runtime_several_modules_test

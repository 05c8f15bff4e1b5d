// Models built without memory, and values that come from rank 0 alone: every parameter and every
// buffer has values before the first forward, or its name is told.
#include <fmt/format.h>

#include "fsdp_core/setup/meta_init.h"
#include "tests/fsdp/models.h"
#include "tests/fsdp/torch_and_catch.h"

namespace setup_meta_sync_test {

namespace fsdp = tessera::fsdp;
using fsdp::MetaInit;
using fsdp::Options;
using fsdp::World;
using fsdp::test::generator_mutex;
using fsdp::test::message_of;

namespace {

/// Parameters, and buffers of several kinds.
struct MixedImpl : torch::nn::Module {
  torch::nn::Linear linear{nullptr};
  torch::Tensor mean, mask, count, table, phase;
  MixedImpl() {
    linear = register_module("linear", torch::nn::Linear(5, 3));
    mean = register_buffer("mean", torch::randn({3}));
    mask = register_buffer("mask", torch::ones({3}, torch::kBool));
    count = register_buffer("count", torch::randint(100, {}, torch::kLong));
    // Not contiguous; and of a type that transports do not know.
    table = register_buffer("table", torch::empty_strided({3, 4}, {1, 3}).normal_());
    phase = register_buffer("phase", torch::randn({2}, torch::kComplexFloat));
  }
  torch::Tensor forward(torch::Tensor x) { return linear->forward(x) + mean; }
};
FSDP_MODULE(Mixed);

Mixed make_mixed(std::uint64_t seed) {
  const std::lock_guard lock(generator_mutex());
  torch::manual_seed(seed);
  return Mixed();
}

Mixed make_blank() {
  const MetaInit meta;
  return Mixed();
}

void fill(const torch::Tensor& tensor) {
  const torch::NoGradGuard no_grad;
  tensor.fill_(1);
}

void fill_all(torch::nn::Module& module) {
  for (auto& param : module.parameters(false)) fill(param);
  for (auto& buffer : module.buffers(false)) fill(buffer);
}

/// What `init` leaves out is named.
std::string refusal(const std::function<void(torch::nn::Module&)>& init) {
  Mixed net = make_blank();
  const World world = fsdp::fake_world(0, 2);
  Options options;
  options.mesh = world.mesh();
  options.param_init_fn = init;
  return message_of([&] { fsdp::fully_shard(net, options); });
}

}  // namespace

TEST_CASE("values of rank 0 reach ranks that were built without memory") {
  const bool hybrid = GENERATE(false, true);
  const bool blank = GENERATE(false, true);  // else: other values of their own
  const char* backend = GENERATE("threads", "gloo");
  CAPTURE(hybrid, blank, backend);
  fsdp::WorldOptions world_options;
  world_options.backend = backend;
  const Mixed want = make_mixed(1);
  fsdp::run_threads(
      4,
      [&](World& world) {
        Mixed net = world.rank() == 0 ? make_mixed(1)
                    : blank           ? make_blank()
                                      : make_mixed(10 + static_cast<std::uint64_t>(world.rank()));
        Options options;
        options.mesh =
            hybrid ? fsdp::DeviceMesh(world, {2, 2}, {"replicate", "shard"}) : world.mesh();
        if (hybrid) options.strategy = fsdp::ShardingStrategy::kHybridShard;
        options.sync_module_states = true;
        options.param_init_fn = [](torch::nn::Module&) {};  // memory is enough
        fsdp::fully_shard(net, options);
        const auto buffers = want->named_buffers();
        for (const auto& buffer : net->named_buffers())
          RANK_CHECK(torch::equal(buffer.value(), buffers[buffer.key()]), buffer.key());
        const fsdp::SummonFullParams full(net);
        const auto params = want->named_parameters();
        for (const auto& param : net->named_parameters())
          RANK_CHECK(torch::equal(param.value(), params[param.key()]), param.key());
      },
      world_options);
}

TEST_CASE("what an init function leaves without values is named") {
  CHECK(refusal(&fill_all).empty());
  const auto without = [](std::string left_out) {
    return refusal([left_out](torch::nn::Module& module) {
      for (auto& param : module.named_parameters(false))
        if (param.key() != left_out) fill(param.value());
      for (auto& buffer : module.named_buffers(false))
        if (buffer.key() != left_out) fill(buffer.value());
    });
  };
  CHECK_THAT(without("bias"), Catch::Contains("3 of the 3 elements of \"linear.bias\""));
  CHECK_THAT(without("mean"), Catch::Contains("\"mean\"") && Catch::Contains("buffers too"));
  CHECK_THAT(without("count"), Catch::Contains("\"count\""));
  CHECK_THAT(without("mask"), Catch::Contains("\"mask\""));
  CHECK_THAT(without("table"), Catch::Contains("12 of the 12 elements of \"table\""));
  CHECK_THAT(without("phase"), Catch::Contains("2 of the 2 elements of \"phase\""));
  // A part of one, too: here all rows but the last.
  CHECK_THAT(refusal([](torch::nn::Module& module) {
               fill_all(module);
               for (auto& param : module.named_parameters(false))
                 if (param.key() == "weight") {
                   const torch::NoGradGuard no_grad;
                   torch::Tensor blank = param.value().detach()[2].view(torch::kInt);
                   blank.fill_(-1);
                 }
             }),
             Catch::Contains("5 of the 15 elements of \"linear.weight\""));
}

TEST_CASE("values that look like none are values where LibTorch wrote them") {
  CHECK(refusal([](torch::nn::Module& module) {
          fill_all(module);
          const torch::NoGradGuard no_grad;
          for (auto& buffer : module.named_buffers(false))
            if (buffer.key() == "count") buffer.value().fill_(-1);
          for (auto& param : module.parameters(false))
            param.fill_(std::numeric_limits<float>::quiet_NaN());
        }).empty());
}

TEST_CASE("init functions see what a module holds itself, once") {
  std::vector<std::string> seen;
  CHECK(refusal([&](torch::nn::Module& module) {
          seen.push_back(module.name());
          fill_all(module);
        }).empty());
  REQUIRE(seen.size() == 2);
  CHECK(seen[0].find("MixedImpl") != std::string::npos);
  CHECK(seen[1] == "torch::nn::LinearImpl");
}

}  // namespace setup_meta_sync_test

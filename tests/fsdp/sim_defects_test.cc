// What only an asynchronous device with memory of its own shows. Each test here failed before its
// defect was mended.
#include <c10/core/DeviceGuard.h>

#include <cstdlib>

#include "fsdp_core/runtime/root.h"
#include "fsdp_core/runtime/units_of.h"
#include "tests/fsdp/models.h"
#include "tests/fsdp/sim/device.h"
#include "tests/fsdp/sim/world.h"
#include "tests/fsdp/torch_and_catch.h"

namespace sim_defects_test {

using namespace tessera;
using namespace tessera::fsdp;
using namespace tessera::fsdp::test;
using torch::Tensor;

namespace {

/// `body` on ranks of devices that are late; no finding.
void on_devices(int size, const std::function<void(World&)>& body, int most_us = 200) {
  sim::set_lateness(9, most_us);
  const std::string error = message_of([&] { sim::run_ranks(size, body); });
  sim::set_lateness(0, 0);
  CHECK(error == "");
  for (const std::string& finding : sim::take_findings()) FAIL_CHECK(finding);
}

Options options_for(World& world) {
  Options options;
  options.mesh = world.mesh();
  options.device = sim::device(world.rank());
  return options;
}

Net sharded(World& world, const Options& options) {
  Net net = make_net(2, 6, 10, 3);
  shard(net, options);
  (void)world;
  return net;
}

Data data_of(World& world) {
  const Data mine = part_of(make_data(8, 6, 3), world.rank(), world.size());
  const torch::Device device = sim::device(world.rank());
  return {mine.x.to(device), mine.y.to(device)};
}

Tensor backward(Net& net, const Data& data) {
  Tensor loss = torch::mse_loss(net->forward(data.x).to(torch::kFloat), data.y);
  loss.backward();
  return loss;
}

/// The plain model's gradients of the whole batch.
Net plain() {
  Net net = make_net(2, 6, 10, 3);
  const Data all = make_data(8, 6, 3);
  torch::mse_loss(net->forward(all.x), all.y).backward();
  return net;
}

struct HalfUsedImpl : torch::nn::Module {
  torch::nn::Linear used{nullptr}, unused{nullptr};
  HalfUsedImpl()
      : used(register_module("used", torch::nn::Linear(6, 3))),
        unused(register_module("unused", torch::nn::Linear(6, 3))) {}
  Tensor forward(Tensor x) { return used->forward(x); }
};
FSDP_MODULE(HalfUsed);

/// A root that owns no parameter.
struct ShellImpl : torch::nn::Module {
  Block block{nullptr};
  ShellImpl() : block(register_module("block", Block(6, 8))) {}
  Tensor forward(Tensor x) { return block->forward(x); }
};
FSDP_MODULE(Shell);

}  // namespace

TEST_CASE("clipping on devices gives the plain norm as a tensor there", "[sim][defects]") {
  const double p = GENERATE(2.0, 1.0, std::numeric_limits<double>::infinity());
  Net alone = plain();
  const double expected = torch::nn::utils::clip_grad_norm_(alone->parameters(), 0.1, p);
  on_devices(2, [&](World& world) {
    Net net = sharded(world, options_for(world));
    backward(net, data_of(world));
    sim::reset_counts(world.rank());
    const Tensor norm = clip_grad_norm_(net, 0.1, p);
    RANK_CHECK(sim::counts(world.rank()).host_syncs == 0);
    RANK_CHECK(norm.device() == sim::device(world.rank()));
    RANK_CHECK(std::abs(norm.item<double>() - expected) < 1e-5, std::to_string(expected));
    SummonOptions options;
    options.with_grads = true;
    const SummonFullParams full(net, options);
    RANK_CHECK(
        torch::allclose(net->head->weight.grad().cpu(), alone->head->weight.grad(), 1e-4, 1e-6));
  });
}

TEST_CASE("clipping where no rank has a gradient leaves a norm of zero on devices",
          "[sim][defects]") {
  on_devices(2, [&](World& world) {
    Net net = sharded(world, options_for(world));
    RANK_CHECK(clip_grad_norm_(net, 0.1).item<float>() == 0);
  });
}

TEST_CASE("unused parameters are found over ranks of devices", "[sim][defects]") {
  on_devices(2, [&](World& world) {
    Options options = options_for(world);
    options.find_unused_parameters = true;
    HalfUsed net;
    fully_shard(net, options);
    net->forward(data_of(world).x).sum().backward();
    for (const auto& parameter : net->named_parameters())
      RANK_CHECK(parameter.value().grad().defined() == parameter.key().starts_with("used"),
                 parameter.key());
  });
}

TEST_CASE("full gradients are gathered on devices", "[sim][defects]") {
  Net alone = plain();
  on_devices(2, [&](World& world) {
    Net net = sharded(world, options_for(world));
    backward(net, data_of(world));
    SummonOptions options;
    options.with_grads = true;
    const SummonFullParams full(net, options);
    const auto mine = net->parameters(), theirs = alone->parameters();
    for (std::size_t i = 0; i < mine.size(); ++i)
      RANK_CHECK(torch::allclose(mine[i].grad().cpu(), theirs[i].grad(), 1e-4, 1e-6));
  });
}

TEST_CASE("states of a module on the CPU are synchronised over groups of devices",
          "[sim][defects]") {
  const Net first = make_net(2, 6, 10, 3);
  on_devices(2, [&](World& world) {
    Options options = options_for(world);
    options.sync_module_states = true;
    Net net = make_net(2, 6, 10, 3);
    if (world.rank() == 1) {
      const torch::NoGradGuard no_grad;
      for (Tensor& parameter : net->parameters()) parameter.zero_();
    }
    shard(net, options);
    const SummonFullParams full(net);
    RANK_CHECK(torch::equal(net->stem->weight.cpu(), first->stem->weight));
    RANK_CHECK(torch::equal(net->blocks[1]->b->bias.cpu(), first->blocks[1]->b->bias));
  });
}

TEST_CASE("a step on devices never makes the host wait", "[sim][defects]") {
  const auto layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  on_devices(2, [&](World& world) {
    Options options = options_for(world);
    options.layout = layout;
    Net net = sharded(world, options);
    torch::optim::SGD optimizer(net->parameters(), 0.05);
    const Data data = data_of(world);
    for (int step = 0; step < 5; ++step) {
      sim::reset_counts(world.rank());
      optimizer.zero_grad();
      backward(net, data);
      clip_grad_norm_(net, 0.1);
      optimizer.step();
      // The first compares wrapping and every call; see options.check.
      RANK_CHECK(step < 1 || sim::counts(world.rank()).host_syncs == 0,
                 std::to_string(sim::counts(world.rank()).host_syncs) + " in step " +
                     std::to_string(step));
      sim::current_stream(world.rank()).synchronize();  // so that the check's result is there
    }
  });
}

TEST_CASE("units that ranks of devices ran in another order are an error of the next forward",
          "[sim][defects]") {
  on_devices(2, [&](World& world) {
    Options options = options_for(world);
    options.backward_prefetch = BackwardPrefetch::kNone;
    Net net = sharded(world, options);
    const Data data = data_of(world);
    backward(net, data);
    if (world.rank() == 1) std::swap(net->blocks[0], net->blocks[1]);
    backward(net, data);
    sim::current_stream(world.rank()).synchronize();
    const std::string message = message_of([&] { net->forward(data.x); });
    RANK_CHECK(message.find("did not run their units in the same order") != std::string::npos,
               message);
  });
}

TEST_CASE("low precision gradients are lowered after the last reduction", "[sim][defects]") {
  on_devices(
      2,
      [&](World& world) {
        Options options = options_for(world);
        options.mixed_precision.param_dtype = torch::kBFloat16;
        options.mixed_precision.reduce_dtype = torch::kFloat;
        options.mixed_precision.keep_low_precision_grads = true;
        Net net = sharded(world, options);
        backward(net, data_of(world));
        for (const auto& parameter : net->named_parameters())
          RANK_CHECK(parameter.value().grad().scalar_type() == torch::kBFloat16, parameter.key());
      },
      2000);
}

TEST_CASE("a root without parameters of its own has its device's streams", "[sim][defects]") {
  on_devices(2, [&](World& world) {
    const Options options = options_for(world);
    Shell net;
    fully_shard(net->block, options);
    fully_shard(net, options);
    net->forward(data_of(world).x).sum().backward();
    const auto unit = named_units(*net).front().second;
    RANK_CHECK(!unit->root()->gather(*unit, unit->comms()).immediate());
  });
}

TEST_CASE("offloaded shards and their gradients are pinned and a backward waits once",
          "[sim][defects]") {
  on_devices(2, [&](World& world) {
    Options options = options_for(world);
    options.cpu_offload.offload_params = true;
    options.check = Check::kOff;
    Net net = sharded(world, options);
    const Data data = data_of(world);
    backward(net, data);
    for (const Tensor& parameter : net->parameters()) {
      if (parameter.numel() == 0) continue;
      RANK_CHECK(parameter.is_cpu() && parameter.is_pinned());
      RANK_CHECK(parameter.grad().is_cpu() && parameter.grad().is_pinned());
    }
    for (Tensor& parameter : net->parameters()) parameter.mutable_grad().reset();
    sim::reset_counts(world.rank());
    backward(net, data);
    RANK_CHECK(sim::counts(world.rank()).host_syncs <= 2,
               std::to_string(sim::counts(world.rank()).host_syncs));
  });
}

TEST_CASE("a unit computes on its device whichever is current", "[sim][defects]") {
  const auto layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  on_devices(2, [&](World& world) {
    Options options = options_for(world);
    options.layout = layout;
    Net net = sharded(world, options);
    const Data data = data_of(world);
    for (int step = 0; step < 3; ++step) {
      const c10::DeviceGuard other(sim::device(5));
      backward(net, data);
      clip_grad_norm_(net, 1);
    }
  });
}

TEST_CASE("the launcher's LOCAL_RANK is the device that is current", "[sim][defects]") {
  struct Variables {
    const char* names[5] = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"};
    Variables() {
      const char* values[5] = {"0", "1", "3", "127.0.0.1", "29500"};
      for (int i = 0; i < 5; ++i) ::setenv(names[i], values[i], 1);
    }
    ~Variables() {
      for (const char* name : names) ::unsetenv(name);
    }
  } variables;
  const c10::DeviceGuard restores(sim::device(0));
  CHECK(init_from_env().local_rank() == 3);
  CHECK(torch::empty({1}, torch::TensorOptions(sim::kType)).device() == sim::device(3));
}

TEST_CASE("max_prefetch_count units are gathered ahead in backward too", "[sim][defects]") {
  on_devices(2, [&](World& world) {
    Options options = options_for(world);
    options.max_prefetch_count = 2;
    options.check = Check::kOff;
    options.separate_reduce_scatter_group = false;  // all of it in one order
    Net net = make_net(4, 6, 10, 3);
    shard(net, options);
    std::string order;
    world.communicator()->observe([&](const CommRecord& record) {
      if (record.phase == CommPhase::kBackward)
        order += (record.op == CommOp::kAllGather ? " AG " : " RS ") + record.unit;
    });
    backward(net, data_of(world));
    RANK_CHECK(order.starts_with(" AG blocks3 AG blocks2 AG blocks1 RS blocks3 AG blocks0"), order);
    world.communicator()->observe({});
  });
}

TEST_CASE("the random state of a device is a value of its own", "[sim][defects]") {
  const torch::Device device = sim::device(2);
  at::Generator generator = at::globalContext().defaultGenerator(device);
  generator.set_current_seed(11);
  const Value state = rng_state(device);
  generator.set_current_seed(12);
  CHECK(rng_state(device).as_string() != state.as_string());
  CHECK(rng_state().as_string() != state.as_string());
  set_rng_state(state, device);
  CHECK(rng_state(device).as_string() == state.as_string());
  CHECK(generator.current_seed() == 11);
}

}  // namespace sim_defects_test

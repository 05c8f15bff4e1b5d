// What a step on a device costs and how its collectives are issued: nothing is made anew, reductions do
// not stand in gathers' way, saves copy once.
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <fmt/format.h>
#include <tessera/tessera.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <thread>

#include "fsdp_core/stream/stream.h"
#include "tests/fsdp/counting_new.h"
#include "tests/fsdp/models.h"
#include "tests/fsdp/sim/device.h"
#include "tests/fsdp/sim/world.h"
#include "tests/fsdp/torch_and_catch.h"

namespace sim_steps_test {

using namespace tessera;
using namespace tessera::fsdp;
using namespace tessera::fsdp::test;
using torch::Tensor;

namespace {

void on_devices(int size, const std::function<void(World&)>& body) {
  sim::set_lateness(11, 100);
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

Data data_of(World& world) {
  const Data mine = part_of(make_data(8, 6, 3), world.rank(), world.size());
  const torch::Device device = sim::device(world.rank());
  return {mine.x.to(device), mine.y.to(device)};
}

void run_step(Net& net, const Data& data) {
  torch::mse_loss(net->forward(data.x).to(torch::kFloat), data.y).backward();
}

}  // namespace

TEST_CASE("from the third step on no event is made", "[sim][steps]") {
  const bool hybrid = GENERATE(false, true);
  on_devices(hybrid ? 4 : 2, [&](World& world) {
    Options options = options_for(world);
    if (hybrid) {
      options.mesh = DeviceMesh(world, {2, 2}, {"replicate", "shard"});
      options.strategy = ShardingStrategy::kHybridShard;
    }
    Net net = make_net(3, 6, 10, 3);
    shard(net, options);
    const Data data = data_of(world);
    for (int step = 0; step < 6; ++step) {
      sim::reset_counts(world.rank());
      run_step(net, data);
      RANK_CHECK(step < 3 || sim::counts(world.rank()).events == 0,
                 fmt::format("{} in step {}", sim::counts(world.rank()).events, step));
      sim::current_stream(world.rank()).synchronize();
    }
  });
}

TEST_CASE("giving work to a device's stream allocates nothing", "[sim][steps]") {
  const auto streams = device_streams(sim::device(0));
  const auto stream = streams->make("gather", true);
  std::array<std::int64_t, 16> large{};
  std::int64_t sum = 0;
  const auto work = [large, &sum] { sum += large[3] + 1; };
  stream->run(work);
  const CountNew counting;
  for (int i = 0; i < 100; ++i) stream->run(work);
  CHECK(counting.counts().all == 0);
  CHECK(sum == 101);
}

TEST_CASE("a backend that averages divides without a kernel of ours", "[sim][steps]") {
  on_devices(2, [&](World& world) {
    std::int64_t launches[2];
    for (const bool force_sum : {false, true}) {
      Options options = options_for(world);
      options.force_sum_reduction_for_comms = force_sum;
      options.check = Check::kOff;
      Net net = make_net(3, 6, 10, 3);
      shard(net, options);
      const Data data = data_of(world);
      run_step(net, data);
      sim::reset_counts(world.rank());
      run_step(net, data);
      launches[force_sum] = sim::counts(world.rank()).launches;
      sim::current_stream(world.rank()).synchronize();
    }
    RANK_CHECK(launches[1] - launches[0] == 4, fmt::format("{} {}", launches[0], launches[1]));
  });
}

TEST_CASE("reductions have a communicator of their own on devices", "[sim][steps]") {
  const bool separate = GENERATE(true, false);
  on_devices(2, [&](World& world) {
    Options options = options_for(world);
    if (!separate) options.separate_reduce_scatter_group = false;
    options.check = Check::kOff;
    Net net = make_net(2, 6, 10, 3);
    shard(net, options);
    const Data data = data_of(world);
    run_step(net, data);
    const CommCounts gathers = world.communicator()->counts();
    RANK_CHECK(gathers.all_gathers > 0);
    RANK_CHECK((gathers.reduce_scatters == 0) == separate);
    const CommCounts reductions = world.group({0, 1}, "reductions")->counts();
    RANK_CHECK((reductions.reduce_scatters == 3) == separate);
    RANK_CHECK(reductions.all_gathers == 0);
  });
}

TEST_CASE("a second communicator for reductions needs a mesh to be made from", "[sim][steps]") {
  sim::run_ranks(2, [&](World& world) {
    Options options;
    options.process_group = world.communicator();
    options.device = sim::device(world.rank());
    options.separate_reduce_scatter_group = true;
    Net net = make_net(1, 6, 10, 3);
    const std::string message = message_of([&] { fully_shard(net, options); });
    RANK_CHECK(message.find("needs options.mesh") != std::string::npos, message);
  });
}

TEST_CASE("collectives of two groups that ranks issue in another order are found", "[sim][steps]") {
  on_devices(2, [&](World& world) {
    // Two groups of the same ranks: each sees its own calls in the same order on both ranks.
    Options outer = options_for(world), inner = outer;
    for (Options* options : {&outer, &inner}) {
      options->backward_prefetch = BackwardPrefetch::kNone;
      options->unshard_stream_per_group = true;
      options->separate_reduce_scatter_group = false;
    }
    inner.mesh.reset();
    inner.process_group = world.group({0, 1}, "inner");
    // Frozen, so that reductions come in one order: on one stream two orders would block each other.
    Net net = make_net(2, 6, 10, 3);
    for (Block& block : net->blocks)
      for (Tensor& parameter : block->parameters()) parameter.set_requires_grad(false);
    fully_shard(net->blocks[0], inner);
    fully_shard(net->blocks[1], outer);
    fully_shard(net, outer);
    const Data data = data_of(world);
    run_step(net, data);
    if (world.rank() == 1) std::swap(net->blocks[0], net->blocks[1]);
    run_step(net, data);
    sim::current_stream(world.rank()).synchronize();
    const std::string message = message_of([&] { net->forward(data.x); });
    RANK_CHECK(message.find("did not run their units in the same order") != std::string::npos,
               message);
  });
}

TEST_CASE("a backward that is not the last does not wait for its reductions", "[sim][steps]") {
  on_devices(2, [&](World& world) {
    Net net = make_net(3, 6, 10, 3), other = make_net(3, 6, 10, 3);
    Options options = options_for(world);
    options.check = Check::kOff;
    shard(net, options);
    shard(other, options);
    const Data data = data_of(world);
    const auto two_microbatches = [&](Net& model, bool waits) {
      std::int64_t first = 0;
      for (auto& parameter : model->parameters()) parameter.mutable_grad().reset();
      for (const bool last : {false, true}) {
        set_is_last_backward(model, last || waits);
        const Tensor loss = torch::mse_loss(model->forward(data.x), data.y);
        sim::reset_counts(world.rank());
        loss.backward();
        if (!last) first = sim::counts(world.rank()).waits;
      }
      return first;
    };
    two_microbatches(net, false);
    two_microbatches(other, true);
    const std::int64_t without = two_microbatches(net, false), with = two_microbatches(other, true);
    RANK_CHECK(without < with, fmt::format("{} {}", without, with));
    const auto mine = net->parameters(), theirs = other->parameters();
    for (std::size_t i = 0; i < mine.size(); ++i)
      RANK_CHECK(mine[i].numel() == 0 ||
                 torch::equal(mine[i].grad().cpu(), theirs[i].grad().cpu()));
  });
}

TEST_CASE("a save from a device copies each tensor once and makes the host wait once",
          "[sim][steps][state]") {
  std::string folder =
      (std::filesystem::temp_directory_path() / "tessera-sim-save-XXXXXX").string();
  REQUIRE(::mkdtemp(folder.data()) != nullptr);
  on_devices(2, [&](World& world) {
    Net net = make_net(3, 6, 10, 3);
    shard(net, options_for(world));
    const Data data = data_of(world);
    torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(1e-2));
    run_step(net, data);
    optimizer.step();
    sim::current_stream(world.rank()).synchronize();
    sim::reset_counts(world.rank());
    LiveState state = state_dict(net, optimizer);
    const sim::Counts made = sim::counts(world.rank());
    RANK_CHECK(made.launches == 0 && made.host_syncs == 0,
               fmt::format("{} launches, {} waits", made.launches, made.host_syncs));
    state.before_save();
    const sim::Counts copied = sim::counts(world.rank());
    // 16 parameters, each with two moments, of some of which a rank holds nothing.
    RANK_CHECK(copied.launches > 20 && copied.launches <= 16 * 3,
               fmt::format("{} launches", copied.launches));
    RANK_CHECK(copied.host_syncs <= 3, fmt::format("{} waits", copied.host_syncs));
    tessera::save(folder + "/checkpoint", std::move(state), world.ranks());
    const auto before = net->parameters();
    std::vector<Tensor> kept;
    for (const Tensor& parameter : before) kept.push_back(parameter.detach().cpu().clone());
    {
      const torch::NoGradGuard no_grad;
      for (Tensor& parameter : net->parameters()) parameter.zero_();
    }
    tessera::load(folder + "/checkpoint", state_dict(net, optimizer), world.ranks());
    const auto after = net->parameters();
    for (std::size_t i = 0; i < after.size(); ++i)
      RANK_CHECK(torch::equal(after[i].detach().cpu(), kept[i]), fmt::format("parameter {}", i));
  });
  std::filesystem::remove_all(folder);
}

namespace {

/// A block beside a buffer that each forward updates.
struct CountedImpl : torch::nn::Module {
  Block block{nullptr};
  Tensor seen;
  CountedImpl() {
    block = register_module("block", Block(6, 10));
    seen = register_buffer("seen", torch::zeros({6}));
  }
  Tensor forward(Tensor x) {
    const torch::NoGradGuard no_grad;
    seen.add_(x.detach().sum(0));
    const torch::AutoGradMode gradients(true);
    return block->forward(x);
  }
};
FSDP_MODULE(Counted);

std::vector<Tensor> on_host(const Counted& net) {
  std::vector<Tensor> out;
  for (const Tensor& each : net->parameters()) out.push_back(each.detach().cpu().clone());
  out.push_back(net->seen.cpu().clone());
  return out;
}

}  // namespace

TEST_CASE("a lazy save from a device makes no host wait and holds the values of the call",
          "[sim][steps][state]") {
  std::string folder =
      (std::filesystem::temp_directory_path() / "tessera-sim-lazy-XXXXXX").string();
  REQUIRE(::mkdtemp(folder.data()) != nullptr);
  on_devices(2, [&](World& world) {
    const int rank = world.rank();
    Counted net;
    fully_shard(net, options_for(world));
    const Tensor x = torch::arange(24, torch::kFloat).view({4, 6}).to(sim::device(rank)) / 24;
    torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(1e-2));
    SaveOptions saving;
    saving.snapshot = SnapshotTiming::kLazy;
    saving.force = true;
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      net->forward(x).sum().backward();
      optimizer.step();
      const std::vector<Tensor> expected = on_host(net);
      sim::current_stream(rank).synchronize();
      // Work that the save has to wait for, on the device alone.
      const Tensor late = torch::ones({4, 6}).to(sim::device(rank));
      for (int i = 0; i < 30; ++i) late.add_(1);
      sim::reset_counts(rank);
      PendingSave pending =
          save_async(folder + "/checkpoint", state_dict(net, optimizer), world.ranks(), saving);
      const sim::Counts during = sim::counts(rank);
      RANK_CHECK(during.launches > 4, fmt::format("{} launches", during.launches));
      // (The thread that waits is another: its waits count here too.)
      RANK_CHECK(during.host_syncs <= 1, fmt::format("{} waits", during.host_syncs));
      net->forward(x).sum().backward();  // updates the buffer
      pending.finish_snapshot();
      optimizer.step();
      pending.wait();
      tessera::load(folder + "/checkpoint", state_dict(net, optimizer), world.ranks());
      const std::vector<Tensor> found = on_host(net);
      for (std::size_t i = 0; i < found.size(); ++i)
        RANK_CHECK(torch::equal(found[i], expected[i]), fmt::format("step {}, {}", step, i));
    }
    // On the caller's thread alone.
    const LiveState state = state_dict(net, optimizer);
    sim::current_stream(rank).synchronize();
    sim::reset_counts(rank);
    const std::function<void()> arrive = state.before_lazy_save();
    const sim::Counts begun = sim::counts(rank);
    RANK_CHECK(begun.host_syncs == 0 && begun.launches > 4,
               fmt::format("{} waits, {} launches", begun.host_syncs, begun.launches));
    arrive();
    RANK_CHECK(sim::counts(rank).host_syncs == 1,
               fmt::format("{} waits", sim::counts(rank).host_syncs));
  });
  std::filesystem::remove_all(folder);
}

TEST_CASE("an optimizer that does not wait for a lazy save from a device is found",
          "[sim][steps][state]") {
  const bool waits = GENERATE(true, false);
  sim::set_lateness(11, 100);
  const std::string error = message_of([&] {
    sim::run_ranks(1, [&](World& world) {
      Counted net;
      fully_shard(net, options_for(world));
      torch::optim::SGD optimizer(net->parameters(), 0.1);
      const Tensor x = torch::ones({4, 6}).to(sim::device(0));
      net->forward(x).sum().backward();
      sim::current_stream(0).synchronize();
      const LiveState state = state_dict(net, optimizer);
      const std::function<void()> arrive = state.before_lazy_save();
      if (waits) arrive();
      optimizer.step();
      if (!waits) arrive();
    });
  });
  sim::set_lateness(0, 0);
  CHECK(error == "");
  CHECK(sim::take_findings().empty() == waits);
}

TEST_CASE("an optimizer step before a lazy save from a device is finished is an error by name",
          "[sim][steps][state]") {
  sim::set_lateness(11, 100);
  std::string folder =
      (std::filesystem::temp_directory_path() / "tessera-sim-early-XXXXXX").string();
  REQUIRE(::mkdtemp(folder.data()) != nullptr);
  const std::string error = message_of([&] {
    sim::run_ranks(2, [&](World& world) {
      Counted net;
      fully_shard(net, options_for(world));
      torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(1e-2));
      const Tensor x = torch::ones({4, 6}).to(sim::device(world.rank()));
      net->forward(x).sum().backward();
      optimizer.step();
      SaveOptions saving;
      saving.snapshot = SnapshotTiming::kLazy;
      PendingSave pending =
          save_async(folder + "/checkpoint", state_dict(net, optimizer), world.ranks(), saving);
      optimizer.step();
      pending.finish_snapshot();
      const std::string message = message_of([&] { pending.wait(); });
      RANK_CHECK(message.find("changed before the lazy snapshot") != std::string::npos, message);
    });
  });
  sim::set_lateness(0, 0);
  CHECK(error == "");
  sim::take_findings();  // the race itself
  CHECK_FALSE(std::filesystem::exists(folder + "/checkpoint"));
  std::filesystem::remove_all(folder);
}

TEST_CASE("a fused optimizer's step counts come to the host in one copy", "[sim][steps][state]") {
  on_devices(2, [&](World& world) {
    Net net = make_net(3, 6, 10, 3);
    shard(net, options_for(world));
    const Data data = data_of(world);
    FusedAdamW optimizer(net->parameters(), torch::optim::AdamWOptions(1e-2));
    for (int step = 0; step < 2; ++step) {
      run_step(net, data);
      optimizer.step();
    }
    sim::current_stream(world.rank()).synchronize();
    sim::reset_counts(world.rank());
    LiveState state = state_dict(net, optimizer);
    const sim::Counts made = sim::counts(world.rank());
    RANK_CHECK(made.launches <= 3 && made.host_syncs <= 1,
               fmt::format("{} launches, {} waits", made.launches, made.host_syncs));
    state.before_save();
    const sim::Counts copied = sim::counts(world.rank());
    // One for the counts and one for the rest.
    RANK_CHECK(copied.host_syncs <= made.host_syncs + 4,
               fmt::format("{} waits", copied.host_syncs));
    int counted = 0;
    for (const StateEntry& entry : state.dict().entries)
      if (dotted(entry.path).ends_with(".step")) ++counted;
    RANK_CHECK(counted == 16, std::to_string(counted));
  });
}

namespace {

/// Two steps of a rank whose compute stream has more to do between optimizer and forward: whether that
/// was still under way when the next forward's first gather began.
bool gathers_beside(World& world, bool with_event, bool early) {
  const int rank = world.rank();
  Net net = make_net(2, 6, 10, 3);
  shard(net, options_for(world));
  const Data data = data_of(world);
  torch::optim::SGD optimizer(net->parameters(), 0.05);
  run_step(net, data);
  sim::current_stream(rank).synchronize();
  std::atomic<bool> begun = false, beside = false;
  set_custom_all_gather(
      net, {[&](GatherBucket& bucket) {
              sim::launch(sim::current_stream(rank), "begun", {}, {}, [&] { begun = true; });
              bucket.comm.all_gather_into(bucket.output, bucket.shard, bucket.tag);
            },
            "mark"});
  const auto event = std::make_shared<c10::Event>(sim::kType);
  if (early) event->record(sim::current_stream(rank));
  optimizer.step();
  if (!early) event->record(sim::current_stream(rank));
  sim::launch(sim::current_stream(rank), "more to do", {}, {}, [&] {
    for (int i = 0; i < 300 && !begun; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    beside = begun.load();
  });
  if (with_event) set_post_optim_event(net, event);
  run_step(net, data);
  sim::current_stream(rank).synchronize();
  return beside;
}

}  // namespace

TEST_CASE("gathers wait for the event after the optimizer instead of for all of compute",
          "[sim][steps]") {
  const bool with_event = GENERATE(true, false);
  on_devices(2, [&](World& world) {
    RANK_CHECK(gathers_beside(world, with_event, /*early=*/false) == with_event);
  });
}

TEST_CASE("an event from before the optimizer's step is found", "[sim][steps]") {
  sim::set_lateness(11, 100);
  sim::run_ranks(2, [&](World& world) { gathers_beside(world, true, /*early=*/true); });
  sim::set_lateness(0, 0);
  CHECK_FALSE(sim::take_findings().empty());
}

TEST_CASE("an event of another device type is refused", "[sim][steps]") {
  on_devices(2, [&](World& world) {
    Net net = make_net(1, 6, 10, 3);
    shard(net, options_for(world));
    const std::string message = message_of(
        [&] { set_post_optim_event(net, std::make_shared<c10::Event>(c10::DeviceType::CPU)); });
    RANK_CHECK(message.find("an event of") != std::string::npos, message);
    RANK_CHECK(message_of([&] { set_post_optim_event(net, nullptr); }).find("no event") !=
               std::string::npos);
  });
}

TEST_CASE("gathers in bf16 and float8 train on devices as on CPUs", "[sim][steps]") {
  const bool eighth = GENERATE(false, true);
  const auto train = [&](World& world, std::optional<torch::Device> device) {
    Options options;
    options.mesh = world.mesh();
    options.device = device;
    Net net = make_net(2, 6, 10, 3);
    shard(net, options);
    set_custom_all_gather(net, eighth ? float8_gather_hook() : bf16_gather_hook());
    Data data = part_of(make_data(8, 6, 3), world.rank(), world.size());
    if (device) data = {data.x.to(*device), data.y.to(*device)};
    torch::optim::SGD optimizer(net->parameters(), 0.05);
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      run_step(net, data);
      optimizer.step();
    }
    std::vector<Tensor> out;
    const SummonFullParams full(net);
    for (const Tensor& parameter : net->parameters())
      out.push_back(parameter.detach().cpu().clone());
    return out;
  };
  std::vector<Tensor> expected;
  run_threads(2, [&](World& world) {
    auto params = train(world, std::nullopt);
    if (world.rank() == 0) expected = std::move(params);
  });
  on_devices(2, [&](World& world) {
    const auto found = train(world, sim::device(world.rank()));
    for (std::size_t i = 0; i < found.size() && world.rank() == 0; ++i)
      // Shards are padded on devices: each rank's scale in float8 is that of other values.
      RANK_CHECK(eighth ? torch::allclose(found[i], expected[i], 0, 1e-2)
                        : torch::equal(found[i], expected[i]),
                 fmt::format("parameter {}", i));
  });
}

}  // namespace sim_steps_test

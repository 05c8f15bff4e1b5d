// Training on the simulated accelerator: whatever the options, ranks on devices whose work runs late
// compute bit for bit what ranks on the CPU compute at once, and no access is without an order. What
// the CPU's ranks compute is held against plain modules by runtime_matrix_test.
#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <random>

#include "tests/fsdp/models.h"
#include "tests/fsdp/sim/device.h"
#include "tests/fsdp/sim/world.h"
#include "tests/fsdp/strategies.h"
#include "tests/fsdp/torch_and_catch.h"

namespace sim_matrix_test {

using namespace tessera;
using namespace tessera::fsdp;
using namespace tessera::fsdp::test;

namespace {

enum class Accumulate { kNo, kUnsynchronised, kReduced, kPartialSums };

/// When gathers are issued, and over what; it changes no bit.
struct Schedule {
  BackwardPrefetch backward = BackwardPrefetch::kPre;
  bool forward_prefetch = false, limited = true, stream_per_group = false, separate = true;
  bool force_sum = false;
  int ahead = 1, in_reduction = 1;

  void set(Options& options) const {
    options.backward_prefetch = backward;
    options.forward_prefetch = forward_prefetch;
    options.limit_all_gathers = limited;
    options.unshard_stream_per_group = stream_per_group;
    options.separate_reduce_scatter_group = separate;
    options.force_sum_reduction_for_comms = force_sum;
    options.max_prefetch_count = ahead;
    options.reduce_scatter_max_input_buffers = in_reduction;
  }
  std::string text() const {
    return fmt::format("prefetch {}{} by {}, {} in reduction{}{}{}{}", static_cast<int>(backward),
                       forward_prefetch ? " and forward" : "", ahead, in_reduction,
                       limited ? "" : ", no limit", stream_per_group ? ", a stream a group" : "",
                       separate ? "" : ", one communicator", force_sum ? ", sums" : "");
  }
};

/// Over which mesh a part of each block's parameters is, by shard_placement_fn.
enum class Experts { kNone, kOneDim, kTwoDims };

struct Row {
  ShardingStrategy strategy = ShardingStrategy::kFullShard;
  MemoryLayout layout = MemoryLayout::kFlat;
  bool low = false, offload = false, frozen = false;
  Accumulate accumulate = Accumulate::kNo;
  Schedule schedule = {};
  Experts experts = Experts::kNone;

  bool hybrid() const { return strategy_of(strategy).hybrid(); }
  int ranks() const { return hybrid() || experts != Experts::kNone ? 4 : 2; }
  /// Of a unit that is hybrid, over all ranks, or as many replicas without shards; else over pairs, or in
  /// two replicas.
  DeviceMesh experts_mesh(World& world) const {
    if (experts == Experts::kTwoDims)
      return DeviceMesh(world, {hybrid() ? 4 : 2, hybrid() ? 1 : 2}, {"replicate", "shard"});
    return hybrid() ? world.mesh() : DeviceMesh(world, {2, 2}, {"pair", "in_pair"}).sub(1);
  }
  std::string text() const {
    static const char* accumulations[] = {"one backward", "unsynchronised", "reduced each time",
                                          "partial sums"};
    static const char* over[] = {"", " experts apart", " experts in replicas"};
    return fmt::format("{}{}{}{}{}{}, {}, {}", strategy_name(strategy),
                       over[static_cast<int>(experts)],
                       layout == MemoryLayout::kFlat ? "" : " per parameter", low ? " bf16" : "",
                       offload ? " offload" : "", frozen ? " frozen" : "",
                       accumulations[static_cast<int>(accumulate)], schedule.text());
  }
};

/// Every combination; partial sums are of hybrid strategies alone.
std::vector<Row> rows() {
  std::vector<Row> out;
  for (const ShardingStrategy strategy : all_strategies())
    for (int layout = 0; layout < 2; ++layout)
      for (int flags = 0; flags < 8; ++flags)
        for (int accumulate = 0; accumulate < 4; ++accumulate) {
          const Row row{strategy,         static_cast<MemoryLayout>(layout),
                        (flags & 1) != 0, (flags & 2) != 0,
                        (flags & 4) != 0, static_cast<Accumulate>(accumulate)};
          if (row.accumulate != Accumulate::kPartialSums || row.hybrid()) out.push_back(row);
        }
  for (const ShardingStrategy strategy : all_strategies())
    for (const Experts experts : {Experts::kOneDim, Experts::kTwoDims})
      for (int flags = 0; flags < 4 && strategy_of(strategy).shards_params; ++flags)
        out.push_back({.strategy = strategy,
                       .layout = static_cast<MemoryLayout>(flags & 1),
                       .low = flags == 1,
                       .offload = flags == 2,
                       .accumulate = flags == 3 ? Accumulate::kPartialSums : Accumulate::kNo,
                       .experts = experts});
  return out;
}

/// Whether each of a step's backwards reduces over the shards, and over all.
using Microbatches = std::vector<std::pair<bool, bool>>;
const Microbatches& microbatches(Accumulate accumulate) {
  static const Microbatches all[] = {{{true, true}},
                                     {{false, true}, {true, true}},
                                     {{true, true}, {true, true}},
                                     {{true, false}, {true, false}, {true, true}}};
  return all[static_cast<int>(accumulate)];
}

struct Trained {
  std::vector<double> losses;
  std::vector<torch::Tensor> params;
};

Trained train(World& world, const Row& row, std::optional<torch::Device> device) {
  Options options;
  options.strategy = row.strategy;
  options.layout = row.layout;
  options.mesh = row.hybrid() ? DeviceMesh(world, {2, world.size() / 2}, {"replicate", "shard"})
                              : world.mesh();
  options.device = device;
  row.schedule.set(options);
  if (row.experts != Experts::kNone)
    options.shard_placement_fn = [mesh = row.experts_mesh(world)](const std::string& fqn,
                                                                  const torch::Tensor&) {
      return fqn.starts_with("a.") ? ShardPlacement(0, mesh) : ShardPlacement();
    };
  options.cpu_offload.offload_params = row.offload;
  if (row.low) {
    options.mixed_precision.param_dtype = torch::kBFloat16;
    options.mixed_precision.reduce_dtype = torch::kFloat;
  }
  Net net = make_net(2, 6, 10, 3);
  if (row.frozen)
    for (torch::Tensor& parameter : net->blocks[0]->parameters())
      parameter.set_requires_grad(false);
  shard(net, options);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  Data data = part_of(make_data(8, 6, 3), world.rank(), world.size());
  if (device) data = {data.x.to(*device), data.y.to(*device)};
  const auto comm = world.communicator();
  Trained out;
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    torch::Tensor loss;
    for (const auto& [sync, all] : microbatches(row.accumulate)) {
      set_requires_gradient_sync(net, sync);
      if (row.hybrid() || row.experts != Experts::kNone) set_requires_all_reduce(net, all);
      loss = torch::mse_loss(net->forward(data.x).to(torch::kFloat), data.y);
      loss.backward();
    }
    optimizer.step();
    out.losses.push_back(mean_loss(loss, comm.get()));
  }
  const SummonFullParams full(net);
  for (const torch::Tensor& parameter : net->parameters())
    out.params.push_back(parameter.detach().cpu().clone());
  return out;
}

std::vector<Trained> on_cpus(const Row& row) {
  std::vector<Trained> out(static_cast<std::size_t>(row.ranks()));
  run_threads(row.ranks(), [&](World& world) {
    out[static_cast<std::size_t>(world.rank())] = train(world, row, std::nullopt);
  });
  return out;
}

std::vector<Trained> on_devices(const Row& row) {
  std::vector<Trained> out(static_cast<std::size_t>(row.ranks()));
  sim::run_ranks(row.ranks(), [&](World& world) {
    out[static_cast<std::size_t>(world.rank())] = train(world, row, sim::device(world.rank()));
  });
  return out;
}

void check_row(const Row& row, std::uint64_t seed, int most_us = 300) {
  INFO(row.text() << ", seed " << seed);
  const std::vector<Trained> expected = on_cpus(row);
  sim::set_lateness(seed, seed == 0 ? 0 : most_us);
  std::vector<Trained> found;
  const std::string error = message_of([&] { found = on_devices(row); });
  sim::set_lateness(0, 0);
  CHECK(error == "");
  for (const std::string& finding : sim::take_findings()) FAIL_CHECK(finding);
  for (std::size_t rank = 0; rank < found.size() && error.empty(); ++rank) {
    CHECK(found[rank].losses == expected[rank].losses);
    REQUIRE(found[rank].params.size() == expected[rank].params.size());
    for (std::size_t p = 0; p < found[rank].params.size(); ++p)
      CHECK(torch::equal(found[rank].params[p], expected[rank].params[p]));
  }
}

/// One rank, whose waits come in the same order in every run.
std::vector<double> losses_of_one_rank() {
  std::vector<double> losses;
  sim::run_ranks(
      1, [&](World& world) { losses = train(world, Row{.offload = true}, sim::device(0)).losses; });
  return losses;
}

}  // namespace

TEST_CASE("a wait that is dropped changes no loss without being found", "[sim][faults]") {
  const std::vector<double> expected = losses_of_one_rank();
  CHECK(sim::take_findings().empty());
  sim::drop_wait(0);
  losses_of_one_rank();
  const int waits = sim::waits_asked();
  CHECK(waits > 20);
  sim::set_lateness(3, 100);
  int found = 0;
  for (int number = 1; number <= waits; number += 4) {
    sim::drop_wait(number);
    const bool right = losses_of_one_rank() == expected;
    sim::drop_wait(0);
    const bool named = !sim::take_findings().empty();
    found += named;
    INFO("wait " << number << " of " << waits);
    CHECK((right || named));
  }
  sim::set_lateness(0, 0);
  // Others order nothing that was not ordered already.
  CHECK(found >= 2);
}

TEST_CASE("rows of every strategy train on late devices bit for bit as on CPUs", "[sim][matrix]") {
  const auto strategy = static_cast<ShardingStrategy>(GENERATE(0, 1, 2, 3, 4));
  std::uint64_t seed = 0, of_strategy = 0;
  for (const Row& row : rows()) {
    ++seed;
    if (row.strategy != strategy) continue;
    ++of_strategy;
    check_row(row, seed);
  }
  CHECK(of_strategy ==
        (Row{strategy}.hybrid() ? 64 : 48) + (strategy_of(strategy).shards_params ? 8 : 0));
}

TEST_CASE("random rows, schedules and delays train on devices bit for bit as on CPUs",
          "[sim][matrix]") {
  const char* wanted = std::getenv("TESSERA_SIM_DRAWS");  // tests/soak/run takes 10,000
  const int draws = wanted ? std::atoi(wanted) : 200;
  std::mt19937_64 random(wanted ? std::random_device()() : 20261128);
  const std::vector<Row> all = rows();
  const auto draw = [&](std::uint64_t below) { return random() % below; };
  for (int i = 0; i < draws; ++i) {
    Row row = all[draw(all.size())];
    row.schedule = {.backward = static_cast<BackwardPrefetch>(draw(3)),
                    .forward_prefetch = draw(2) == 0,
                    .limited = draw(2) == 0,
                    .stream_per_group = draw(2) == 0,
                    .separate = draw(2) == 0,
                    .force_sum = draw(2) == 0,
                    .ahead = 1 + static_cast<int>(draw(3)),
                    .in_reduction = 1 + static_cast<int>(draw(3))};
    check_row(row, 1 + draw(1u << 30), 1 + static_cast<int>(draw(200)));
  }
}

}  // namespace sim_matrix_test

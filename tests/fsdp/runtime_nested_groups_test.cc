// Units of one tree over different groups of ranks: experts over pairs inside a model over all. And
// the streams behind it: one gather stream, or one for each group where asked, every one of which
// waits for the optimizer's stream each step.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "fsdp_core/runtime/root.h"
#include "fsdp_core/runtime/unit.h"
#include "fsdp_core/stream/stream.h"
#include "tests/fsdp/models.h"
#include "tests/fsdp/torch_and_catch.h"

namespace runtime_nested_groups_test {

using namespace tessera::fsdp;
using namespace tessera::fsdp::test;

namespace {

constexpr int kRanks = 4, kSteps = 5;
constexpr double kRate = 0.05;

struct Setting {
  bool stream_per_group = false;
  bool late = false;
};

Net make_nested(World& world, const Setting& setting) {
  Net net = make_net(2);
  Options outer, inner;
  outer.mesh = world.mesh();
  inner.mesh = DeviceMesh(world, {2, 2}, {"pair", "in_pair"}).sub(1);
  outer.unshard_stream_per_group = inner.unshard_stream_per_group = setting.stream_per_group;
  for (Block& block : net->blocks) fully_shard(block, inner);
  fully_shard(net, outer);
  return net;
}

using Params = std::map<std::string, torch::Tensor>;

Params train(World& world, const Setting& setting) {
  if (setting.late)
    tessera::fsdp::detail::Root::use_streams(
        simulated_streams(60 + static_cast<std::uint64_t>(world.rank()), 1200));
  Net net = make_nested(world, setting);
  torch::optim::SGD optimizer(net->parameters(), kRate);
  const Data data = part_of(make_data(), world.rank(), world.size());
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    torch::mse_loss(net->forward(data.x), data.y).backward();
    optimizer.step();
  }
  Params out;
  const SummonFullParams full(net);
  for (const auto& param : net->named_parameters())
    out[param.key()] = param.value().detach().clone();
  tessera::fsdp::detail::Root::use_streams(nullptr);
  return out;
}

/// Four plain models: the blocks' gradients are averaged within pairs, all others over all.
std::vector<Net> train_plain() {
  std::vector<Net> nets;
  for (int rank = 0; rank < kRanks; ++rank) nets.push_back(make_net(2));
  const Data data = make_data();
  const torch::NoGradGuard no_grad;
  for (int step = 0; step < kSteps; ++step) {
    for (int rank = 0; rank < kRanks; ++rank) {
      const torch::AutoGradMode gradients(true);
      const Data mine = part_of(data, rank, kRanks);
      nets[rank]->zero_grad();
      torch::mse_loss(nets[rank]->forward(mine.x), mine.y).backward();
    }
    std::vector<std::map<std::string, torch::Tensor>> means(kRanks);
    for (int rank = 0; rank < kRanks; ++rank)
      for (const auto& param : nets[rank]->named_parameters()) {
        const bool block = param.key().starts_with("blocks");
        const int first = block ? rank / 2 * 2 : 0, count = block ? 2 : kRanks;
        torch::Tensor sum = torch::zeros_like(param.value());
        for (int peer = first; peer < first + count; ++peer)
          sum += nets[peer]->named_parameters()[param.key()].grad();
        means[rank][param.key()] = sum / count;
      }
    for (int rank = 0; rank < kRanks; ++rank)
      for (auto& param : nets[rank]->named_parameters())
        param.value().sub_(means[rank][param.key()], kRate);
  }
  return nets;
}

/// Streams whose work runs at once, and a log of who waits for whom, "gather 0 <- compute".
struct Log {
  std::vector<std::string> lines;
  int gathers = 0;
  std::map<std::string, bool> high_priority;  // by stream
  std::size_t first(const std::string& line) const {
    return static_cast<std::size_t>(std::ranges::find(lines, line) - lines.begin());
  }
};

struct Origin final : Event::Impl {
  explicit Origin(std::string stream_) : stream(std::move(stream_)) {}
  void synchronize() override {}
  bool ready() const override { return true; }
  std::string stream;
};

class LoggedStream final : public Stream {
 public:
  LoggedStream(std::string name, Log& log) : Stream(std::move(name), true), log_(log) {}
  Event record() override { return Event(std::make_shared<Origin>(name())); }
  void wait(const Event& event) override {
    if (const auto* origin = dynamic_cast<const Origin*>(event.impl().get()))
      log_.lines.push_back(name() + " <- " + origin->stream);
  }

 private:
  void launch(std::function<void()> work, const Communicator*) override { work(); }
  Log& log_;
};

class LoggedStreams final : public StreamFactory {
 public:
  explicit LoggedStreams(Log& log) : log_(log) {}
  std::shared_ptr<Stream> compute() override {
    return std::make_shared<LoggedStream>("compute", log_);
  }
  std::shared_ptr<Stream> make(std::string name, bool high_priority) override {
    log_.high_priority[name] = high_priority;
    if (name == "gather") name += fmt::format(" {}", log_.gathers++);
    return std::make_shared<LoggedStream>(std::move(name), log_);
  }

 private:
  Log& log_;
};

}  // namespace

TEST_CASE("units over pairs inside a model over all ranks train as plain models that average so",
          "[runtime][groups]") {
  const std::vector<Net> plain = train_plain();
  run_threads(kRanks, [&](World& world) {
    const Params one = train(world, {});
    const auto want = plain[static_cast<std::size_t>(world.rank())]->named_parameters();
    for (const auto& [name, value] : one)
      RANK_CHECK(torch::allclose(value, want[name], 1e-5, 1e-6), name);
    for (const Setting setting : {Setting{true, false}, Setting{false, true}, Setting{true, true}})
      for (const auto& [name, value] : train(world, setting))
        RANK_CHECK(torch::equal(value, one.at(name)),
                   fmt::format("{} {} {}", name, setting.stream_per_group, setting.late));
  });
}

TEST_CASE("one gather stream - or one for each group - waits for compute before each step gathers",
          "[runtime][groups]") {
  const bool per_group = GENERATE(false, true);
  run_threads(kRanks, [&](World& world) {
    Log log;
    tessera::fsdp::detail::Root::use_streams(std::make_shared<LoggedStreams>(log));
    Net net = make_nested(world, {per_group, false});
    const auto& inner = *dynamic_cast<HookPoint&>(*net->blocks[0]).unit;
    const std::vector<std::shared_ptr<Communicator>> groups = {
        world.communicator(), world.group(inner.options().mesh->ranks_along(0))};
    for (const auto& group : groups)
      group->observe([&](const CommRecord& record) {
        if (record.op == CommOp::kAllGather && record.phase == CommPhase::kForward)
          log.lines.push_back("all-gather");
      });
    const Data data = part_of(make_data(), world.rank(), world.size());
    for (int step = 0; step < 3; ++step) {
      log.lines.clear();
      torch::mse_loss(net->forward(data.x), data.y).backward();
      // From the second step on; before, a stream is made where it is first needed.
      if (step == 0) continue;
      for (int stream = 0; stream < log.gathers; ++stream)
        RANK_CHECK(log.first(fmt::format("gather {} <- compute", stream)) < log.first("all-gather"),
                   fmt::format("stream {}, step {}", stream, step));
    }
    RANK_CHECK(log.gathers == (per_group ? 2 : 1), std::to_string(log.gathers));
    for (const auto& group : groups) group->observe({});
    tessera::fsdp::detail::Root::use_streams(nullptr);
  });
}

TEST_CASE("streams wait for each other, and go first, as the table says", "[runtime][streams]") {
  const bool hybrid = GENERATE(false, true);
  run_threads(kRanks, [&](World& world) {
    Log log;
    tessera::fsdp::detail::Root::use_streams(std::make_shared<LoggedStreams>(log));
    Options options;
    options.mesh = hybrid ? DeviceMesh(world, {2, 2}, {"replicate", "shard"}) : world.mesh();
    if (hybrid) options.strategy = ShardingStrategy::kHybridShard;
    Net net = make_net(2);
    shard(net, options);
    const Data data = part_of(make_data(), world.rank(), world.size());
    std::vector<std::string> forward, backward;
    for (int step = 0; step < 2; ++step) {
      log.lines.clear();
      const torch::Tensor loss = torch::mse_loss(net->forward(data.x), data.y);
      forward = std::exchange(log.lines, {});
      loss.backward();
      backward = log.lines;
    }
    const auto kinds = [](std::vector<std::string> lines) {
      std::ranges::sort(lines);
      lines.erase(std::unique(lines.begin(), lines.end()), lines.end());
      return fmt::format("{}", fmt::join(lines, ", "));
    };
    RANK_CHECK(forward.front() == "gather 0 <- compute", forward.front());
    RANK_CHECK(kinds(forward) == "compute <- gather 0, gather 0 <- compute", kinds(forward));
    const std::string want =
        hybrid ? "all-reduce <- reduce, compute <- all-reduce, compute <- gather 0, "
                 "compute <- reduce, gather 0 <- compute, reduce <- compute"
               : "compute <- gather 0, compute <- reduce, gather 0 <- compute, reduce <- compute";
    RANK_CHECK(kinds(backward) == want, kinds(backward));
    // The end of backward: what the optimizer reads is there.
    RANK_CHECK(backward.back() == "compute <- reduce", backward.back());
    RANK_CHECK(!hybrid || backward[backward.size() - 2] == "compute <- all-reduce");
    // Replicas' sums have until the end of backward; what the next unit waits for goes first.
    std::map<std::string, bool> priorities = {{"gather", true}, {"reduce", true}};
    if (hybrid) priorities["all-reduce"] = false;
    RANK_CHECK(log.high_priority == priorities);
    tessera::fsdp::detail::Root::use_streams(nullptr);
  });
}

TEST_CASE("making meshes and sharding over them sends nothing and shares every group",
          "[runtime][groups]") {
  run_threads(kRanks, [](World& world) {
    Options options;
    options.mesh = DeviceMesh(world, {2, 2}, {"replicate", "shard"});
    options.strategy = ShardingStrategy::kHybridShard;
    Net net = make_net(2);
    shard(net, options);
    const auto& root = *dynamic_cast<HookPoint&>(*net).unit;
    for (Block& block : net->blocks) {
      auto& unit = *dynamic_cast<HookPoint&>(*block).unit;
      RANK_CHECK(unit.options().mesh->same(*root.options().mesh));
      RANK_CHECK(unit.comms().shard.get() == options.mesh->group(1).get());
      RANK_CHECK(unit.comms().replicate.get() == options.mesh->group(0).get());
    }
    for (const auto& comm :
         {world.communicator(), options.mesh->group(0), options.mesh->group(1)}) {
      const CommCounts counts = comm->counts();
      RANK_CHECK(counts.all_gathers + counts.reduce_scatters + counts.all_reduces +
                     counts.broadcasts + counts.check_calls ==
                 0);
    }
  });
}

}  // namespace runtime_nested_groups_test

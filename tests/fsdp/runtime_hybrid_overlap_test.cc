// With replicas the all-reduce of one unit runs beside the reduce-scatter of the next, on a stream
// of its own: at most one sum over the shards is in all-reduce and one waits for it. The end of
// backward waits for all of it.
#include <fmt/format.h>

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "fsdp_core/runtime/root.h"
#include "fsdp_core/stream/stream.h"
#include "tests/fsdp/full_gradients.h"
#include "tests/fsdp/models.h"
#include "tests/fsdp/strategies.h"
#include "tests/fsdp/torch_and_catch.h"

namespace runtime_hybrid_overlap_test {

using namespace tessera::fsdp;
using namespace tessera::fsdp::test;

namespace {

/// An all-reduce begins when the reduce-scatter after its own has, or there is none to come.
class Gate {
 public:
  void close(int scatters) {
    const std::lock_guard lock(mutex_);
    scatters_ = scatters;
    begun_ = passed_ = 0;
  }
  void scatter_begins() {
    const std::lock_guard lock(mutex_);
    ++begun_;
    changed_.notify_all();
  }
  void pass() {
    std::unique_lock lock(mutex_);
    ++passed_;
    const int wanted = std::min(passed_ + 1, scatters_);
    changed_.wait_for(lock, std::chrono::seconds(5), [&] { return begun_ >= wanted; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int scatters_ = 0, begun_ = 0, passed_ = 0;
};

class GatedStream final : public Stream {
 public:
  GatedStream(std::shared_ptr<Stream> inner, Gate& gate)
      : Stream(inner->name(), /*immediate=*/false), inner_(std::move(inner)), gate_(gate) {}
  Event record() override { return inner_->record(); }
  void wait(const Event& event) override { inner_->wait(event); }

 private:
  void launch(std::function<void()> work, const Communicator* comm) override {
    if (comm == nullptr) return inner_->run(std::move(work));
    inner_->run(
        [work = std::move(work), &gate = gate_] {
          gate.pass();
          work();
        },
        comm);
  }
  std::shared_ptr<Stream> inner_;
  Gate& gate_;
};

class GatedAllReduce final : public StreamFactory {
 public:
  explicit GatedAllReduce(Gate& gate) : gate_(gate) {}
  std::shared_ptr<Stream> compute() override { return inner_->compute(); }
  std::shared_ptr<Stream> make(std::string name, bool high_priority) override {
    const bool gated = name == "all-reduce";
    auto stream = inner_->make(std::move(name), high_priority);
    if (!gated) return stream;
    return std::make_shared<GatedStream>(std::move(stream), gate_);
  }

 private:
  std::shared_ptr<StreamFactory> inner_ = simulated_streams(1, 0);
  Gate& gate_;
};

}  // namespace

TEST_CASE("the next unit is reduce-scattered while one is all-reduced and one waits for it",
          "[runtime][hybrid][streams]") {
  const auto strategy = GENERATE(from_range(hybrid_strategies()));
  std::string order;
  run_threads(4, [&](World& world) {
    Gate gate;
    tessera::fsdp::detail::Root::use_streams(std::make_shared<GatedAllReduce>(gate));
    Net net = make_net(3), plain = make_net(3);
    Options options;
    options.mesh = DeviceMesh(world, {2, 2}, {"replicate", "shard"});
    options.strategy = strategy;
    shard(net, options);
    const Data data = make_data();
    torch::mse_loss(net->forward(data.x), data.y).backward();
    for (auto& param : net->parameters()) param.mutable_grad().reset();
    std::mutex mutex;
    std::string log;
    const auto groups = {options.mesh->group(0), options.mesh->group(1)};
    for (const auto& group : groups)
      group->observe([&](const CommRecord& record) {
        if (record.phase == CommPhase::kCheck) return;
        if (record.op != CommOp::kReduceScatter && record.op != CommOp::kAllReduce) return;
        const std::lock_guard lock(mutex);
        if (record.op == CommOp::kReduceScatter) gate.scatter_begins();
        log += fmt::format("{}({}) ", record.op == CommOp::kAllReduce ? "AR" : "RS", record.unit);
      });
    gate.close(4);
    torch::mse_loss(net->forward(data.x), data.y).backward();
    torch::mse_loss(plain->forward(data.x), data.y).backward();
    for (const auto& group : groups) group->observe({});
    if (world.rank() == 0) order = log;
    // Without a wait for the all-reduce these would be sums over the shards alone.
    check_full_gradients(net, plain);
    tessera::fsdp::detail::Root::use_streams(nullptr);
  });
  CHECK(order ==
        "RS(blocks2) RS(blocks1) AR(blocks2) RS(blocks0) AR(blocks1) RS() AR(blocks0) AR() ");
}

}  // namespace runtime_hybrid_overlap_test

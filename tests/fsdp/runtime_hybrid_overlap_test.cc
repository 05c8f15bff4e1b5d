// With replicas the all-reduce of one unit runs beside the reduce-scatter of the next, on a stream
// of its own: at most one sum over the shards is in all-reduce and one waits for it. The end of
// backward waits for all of it.
#include <fmt/format.h>

#include <chrono>
#include <mutex>
#include <thread>

#include "fsdp_core/runtime/root.h"
#include "fsdp_core/stream/stream.h"
#include "tests/fsdp/full_gradients.h"
#include "tests/fsdp/models.h"
#include "tests/fsdp/torch_and_catch.h"

using namespace tessera::fsdp;
using namespace tessera::fsdp::test;

namespace {

/// Work of one stream begins late.
class SlowStream final : public Stream {
 public:
  SlowStream(std::shared_ptr<Stream> inner, std::chrono::milliseconds delay)
      : Stream(inner->name(), /*immediate=*/false), inner_(std::move(inner)), delay_(delay) {}
  Event record() override { return inner_->record(); }
  void wait(const Event& event) override { inner_->wait(event); }

 private:
  void launch(std::function<void()> work, const Communicator* comm) override {
    inner_->run(
        [work = std::move(work), delay = delay_] {
          std::this_thread::sleep_for(delay);
          work();
        },
        comm);
  }
  std::shared_ptr<Stream> inner_;
  std::chrono::milliseconds delay_;
};

class SlowAllReduce final : public StreamFactory {
 public:
  explicit SlowAllReduce(std::chrono::milliseconds delay) : delay_(delay) {}
  std::shared_ptr<Stream> compute() override { return inner_->compute(); }
  std::shared_ptr<Stream> make(std::string name, bool high_priority) override {
    const bool slow = name == "all-reduce";
    auto stream = inner_->make(std::move(name), high_priority);
    if (!slow) return stream;
    return std::make_shared<SlowStream>(std::move(stream), delay_);
  }

 private:
  std::shared_ptr<StreamFactory> inner_ = simulated_streams(1, 0);
  std::chrono::milliseconds delay_;
};

}  // namespace

TEST_CASE("the next unit is reduce-scattered while one is all-reduced and one waits for it",
          "[runtime][hybrid][streams]") {
  const auto strategy =
      GENERATE(ShardingStrategy::kHybridShard, ShardingStrategy::kHybridShardZero2);
  std::string order;
  run_threads(4, [&](World& world) {
    tessera::fsdp::detail::Root::use_streams(
        std::make_shared<SlowAllReduce>(std::chrono::milliseconds(60)));
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
        log += fmt::format("{}({}) ", record.op == CommOp::kAllReduce ? "AR" : "RS", record.unit);
      });
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

// The rate limiter, measured: on a device the host runs ahead of compute. Limited, a gather waits
// until compute is done with what was gathered before; not limited, every unit may be gathered at
// once, and its memory stays until compute has passed.
#include <fmt/format.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "fsdp_core/params/recycler.h"
#include "fsdp_core/runtime/root.h"
#include "tests/fsdp/models.h"
#include "tests/fsdp/torch_and_catch.h"

namespace runtime_rate_limit_test {

using namespace tessera::fsdp;
using namespace tessera::fsdp::test;
using Clock = std::chrono::steady_clock;

namespace {

/// When a slow device's compute has passed a point: some time after the host gave the work, or when
/// let go.
class Device {
 public:
  explicit Device(std::chrono::milliseconds lag) : lag_(lag) {}
  /// Points from now on are not passed before release().
  void hold() { change(true); }
  void release() { change(false); }

  struct Point final : Event::Impl {
    Device& device;
    Clock::time_point due;
    bool held;
    Point(Device& device_, Clock::time_point due_, bool held_)
        : device(device_), due(due_), held(held_) {}
    void synchronize() override {
      {
        std::unique_lock lock(device.mutex_);
        device.changed_.wait(lock, [&] { return !held || !device.held_; });
      }
      std::this_thread::sleep_until(due);
    }
    bool ready() const override {
      const std::lock_guard lock(device.mutex_);
      return !(held && device.held_) && Clock::now() >= due;
    }
  };
  Event point() {
    const std::lock_guard lock(mutex_);
    last_ = std::max(last_, Clock::now()) + lag_;
    return Event(std::make_shared<Point>(*this, last_, held_));
  }

 private:
  void change(bool held) {
    const std::lock_guard lock(mutex_);
    held_ = held;
    changed_.notify_all();
  }
  const std::chrono::milliseconds lag_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool held_ = false;
  Clock::time_point last_;
};

/// The host's operators run at once; that they have run is seen late.
class LateCompute final : public Stream {
 public:
  LateCompute(std::shared_ptr<Stream> inner, Device& device)
      : Stream("compute", /*immediate=*/false), inner_(std::move(inner)), device_(device) {}
  Event record() override { return device_.point(); }
  void wait(const Event& event) override { inner_->wait(event); }

 private:
  void launch(std::function<void()> work, const Communicator* comm) override {
    inner_->run(std::move(work), comm);
  }
  std::shared_ptr<Stream> inner_;
  Device& device_;
};

class SlowDevice final : public StreamFactory {
 public:
  SlowDevice(std::shared_ptr<StreamFactory> others, Device& device)
      : others_(std::move(others)), device_(device) {}
  std::shared_ptr<Stream> compute() override {
    return std::make_shared<LateCompute>(others_->compute(), device_);
  }
  std::shared_ptr<Stream> make(std::string name, bool high_priority) override {
    return others_->make(std::move(name), high_priority);
  }

 private:
  std::shared_ptr<StreamFactory> others_;
  Device& device_;
};

constexpr int kUnits = 10;
constexpr std::int64_t kWidth = 32, kRanks = 4;
constexpr std::size_t kUnitBytes =
    4 * 2 * (kWidth * kWidth + kWidth);  // two linear layers; no padding

struct TowerImpl : torch::nn::Module {
  std::vector<Block> blocks;
  std::function<void()> on_begin = [] {};
  TowerImpl() {
    for (int i = 0; i < kUnits; ++i)
      blocks.push_back(register_module(fmt::format("b{}", i), Block(kWidth, kWidth)));
  }
  torch::Tensor forward(torch::Tensor x) {
    on_begin();
    for (Block& block : blocks) x = block->forward(x);
    return x;
  }
};
FSDP_MODULE(Tower);

/// Ten units over a group that talks to nobody, and how much of gathered memory there was at most.
struct Measured {
  Measured(bool limited, int ahead, std::shared_ptr<StreamFactory> streams, bool hybrid = false) {
    tessera::fsdp::detail::Root::use_streams(std::move(streams));
    base = recycler_counts().in_use;
    Options options;
    options.mesh =
        hybrid ? DeviceMesh(world, {2, kRanks / 2}, {"replicate", "shard"}) : world.mesh();
    if (hybrid) options.strategy = ShardingStrategy::kHybridShard;
    comm = options.mesh->group(hybrid ? 1 : 0);
    options.limit_all_gathers = limited;
    options.forward_prefetch = ahead > 0;
    options.max_prefetch_count = std::max(ahead, 1);
    {
      const std::lock_guard lock(generator_mutex());
      torch::manual_seed(5);
      tower = Tower();
    }
    for (Block& block : tower->blocks) fully_shard(block, options);
    fully_shard(tower, options);
    comm->observe([this](const CommRecord& record) {
      if (record.op == CommOp::kAllGather || record.op == CommOp::kReduceScatter)
        most = std::max(most.load(), recycler_counts().in_use - base);
    });
  }
  ~Measured() {
    comm->observe({});
    tessera::fsdp::detail::Root::use_streams(nullptr);
  }
  std::size_t units() const { return most / kUnitBytes; }

  World world = fake_world(1, kRanks);
  std::shared_ptr<Communicator> comm;
  Tower tower{nullptr};
  std::size_t base = 0;
  std::atomic<std::size_t> most = 0;
};

}  // namespace

TEST_CASE("no more units are gathered than the limit however late compute is", "[runtime][limit]") {
  const int ahead = GENERATE(0, 1, 2, 3);
  const bool hybrid = GENERATE(false, true);
  CAPTURE(ahead, hybrid);
  Device device(std::chrono::milliseconds(2));
  Measured run(/*limited=*/true, ahead,
               std::make_shared<SlowDevice>(simulated_streams(7, 500), device), hybrid);
  const torch::Tensor x = torch::ones({2, kWidth});
  // The first forward records the order that prefetching follows.
  run.tower->forward(x).sum().backward();
  for (int step = 0; step < 2; ++step) {
    run.most = 0;
    {
      const torch::NoGradGuard evaluation;
      run.tower->forward(x);
    }
    CHECK(run.units() == static_cast<std::size_t>(1 + ahead));
    const torch::Tensor y = run.tower->forward(x);
    CHECK(run.units() == static_cast<std::size_t>(1 + ahead));
    run.most = 0;
    // Backward gathers as many ahead (one by default). Beside them lie the gradients of a unit at
    // work and of one being reduced, and with replicas two halves: a sum in all-reduce and one that
    // waits for it.
    y.sum().backward();
    CHECK(run.units() <= static_cast<std::size_t>((hybrid ? 4 : 3) + std::max(1, ahead)));
  }
}

TEST_CASE("without the limit every unit is gathered at once and memory waits for compute",
          "[runtime][limit]") {
  Device device(std::chrono::milliseconds(0));
  Measured run(/*limited=*/false, /*ahead=*/1,
               std::make_shared<SlowDevice>(simulated_streams(9, 200), device));
  const torch::Tensor x = torch::ones({2, kWidth});
  run.tower->forward(x).sum().backward();
  run.tower->on_begin = [&] { device.hold(); };
  run.most = 0;
  {
    const torch::NoGradGuard evaluation;
    run.tower->forward(x);
  }
  CHECK(run.units() == kUnits);
  CHECK(recycler_counts().in_use - run.base == kUnits * kUnitBytes);
  device.release();
  // The next gather gives back what compute has passed.
  run.tower->on_begin = [] {};
  {
    const torch::NoGradGuard evaluation;
    run.tower->forward(x);
  }
  run.tower->forward(x).sum().backward();
  CHECK(recycler_counts().in_use - run.base <= kUnitBytes);
}

TEST_CASE("training gives the same bits limited or not and however late compute is",
          "[runtime][limit]") {
  using Params = std::vector<torch::Tensor>;
  const auto train = [](World& world, bool limited, bool late) {
    Device device(std::chrono::milliseconds(1));
    if (late)
      tessera::fsdp::detail::Root::use_streams(
          std::make_shared<SlowDevice>(simulated_streams(3 + world.rank(), 300), device));
    Net net = make_net();
    Options options;
    options.mesh = world.mesh();
    options.limit_all_gathers = limited;
    options.forward_prefetch = true;
    options.max_prefetch_count = 2;
    shard(net, options);
    torch::optim::SGD optimizer(net->parameters(), 0.01);
    const Data data = part_of(make_data(), world.rank(), world.size());
    for (int step = 0; step < 4; ++step) {
      optimizer.zero_grad();
      torch::mse_loss(net->forward(data.x), data.y).backward();
      optimizer.step();
    }
    Params out;
    for (const torch::Tensor& param : net->parameters()) out.push_back(param.detach().clone());
    tessera::fsdp::detail::Root::use_streams(nullptr);
    return out;
  };
  run_threads(2, [&](World& world) {
    const Params plain = train(world, true, false);
    for (const bool limited : {true, false}) {
      const Params late = train(world, limited, true);
      for (std::size_t p = 0; p < plain.size(); ++p)
        RANK_CHECK(torch::equal(plain[p], late[p]), fmt::format("{} {}", limited, p));
    }
  });
}

}  // namespace runtime_rate_limit_test

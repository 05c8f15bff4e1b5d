// Each wait that the runtime's streams owe each other is taken away by name, and each race that was
// mended is put back: the simulated accelerator finds every one of them.
#include <fmt/format.h>

#include <map>

#include "fsdp_core/runtime/put_back.h"
#include "fsdp_core/runtime/root.h"
#include "fsdp_core/stream/stream.h"
#include "tests/fsdp/models.h"
#include "tests/fsdp/sim/device.h"
#include "tests/fsdp/sim/world.h"
#include "tests/fsdp/torch_and_catch.h"

namespace sim_races_test {

using namespace tessera;
using namespace tessera::fsdp;
using namespace tessera::fsdp::test;
using tessera::fsdp::detail::put_back;
using tessera::fsdp::detail::Race;

namespace {

/// "gather <- compute": a stream that does not wait for the other.
struct Missing {
  std::string waiter, awaited;
  /// Of these waits, the first of a step alone, or all but the first; neither: all.
  bool first_only = false, but_the_first = false;
};

/// What one rank's streams wait for, but for what is missing.
struct Waits {
  Missing missing;
  int seen = 0;  // in this step
  int dropped = 0;
  bool drops(const std::string& waiter, const std::string& awaited) {
    if (waiter != missing.waiter || awaited != missing.awaited) return false;
    const bool first = seen++ == 0;
    if ((missing.first_only && !first) || (missing.but_the_first && first)) return false;
    ++dropped;
    return true;
  }
};

struct Named final : Event::Impl {
  Named(std::string stream_, Event event_) : stream(std::move(stream_)), event(std::move(event_)) {}
  void synchronize() override { event.synchronize(); }
  bool ready() const override { return event.ready(); }
  const std::string stream;
  const Event event;
};

class LaxStream final : public Stream {
 public:
  LaxStream(std::shared_ptr<Stream> inner, std::shared_ptr<Waits> waits)
      : Stream(inner->name(), inner->immediate(), /*launches_now=*/true),
        inner_(std::move(inner)),
        waits_(std::move(waits)) {}
  Event record() override { return Event(std::make_shared<Named>(name(), inner_->record())); }
  void wait(const Event& event) override {
    const auto* named = dynamic_cast<const Named*>(event.impl().get());
    if (!named) return inner_->wait(event);
    if (!waits_->drops(name(), named->stream)) inner_->wait(named->event);
  }

 private:
  void launch(std::function<void()> work, const Communicator* comm) override {
    inner_->run(work, comm);
  }
  void launch_now(c10::function_ref<void()> work, const Communicator* comm) override {
    inner_->run(work, comm);
  }
  const std::shared_ptr<Stream> inner_;
  const std::shared_ptr<Waits> waits_;
};

class LaxStreams final : public StreamFactory {
 public:
  LaxStreams(c10::Device device, std::shared_ptr<Waits> waits)
      : inner_(device_streams(device)), waits_(std::move(waits)) {}
  std::shared_ptr<Stream> compute() override {
    return std::make_shared<LaxStream>(inner_->compute(), waits_);
  }
  std::shared_ptr<Stream> make(std::string name, bool high_priority) override {
    return std::make_shared<LaxStream>(inner_->make(std::move(name), high_priority), waits_);
  }

 private:
  const std::shared_ptr<StreamFactory> inner_;
  const std::shared_ptr<Waits> waits_;
};

struct Setting {
  bool hybrid = false, partial = false, low = false, offload = false;
};

/// Three steps of rank `world.rank()`: its parameters afterwards.
std::vector<torch::Tensor> train(World& world, const Setting& setting,
                                 const std::shared_ptr<Waits>& waits) {
  const torch::Device device = sim::device(world.rank());
  tessera::fsdp::detail::Root::use_streams(std::make_shared<LaxStreams>(device, waits));
  Options options;
  options.mesh = setting.hybrid ? DeviceMesh(world, {2, 2}, {"replicate", "shard"}) : world.mesh();
  if (setting.hybrid) options.strategy = ShardingStrategy::kHybridShard;
  options.device = device;
  options.check = Check::kOff;
  options.cpu_offload.offload_params = setting.offload;
  if (setting.low) {
    options.mixed_precision.param_dtype = torch::kBFloat16;
    options.mixed_precision.reduce_dtype = torch::kFloat;
    options.mixed_precision.keep_low_precision_grads = true;
  }
  Net net = make_net(4, 6, 10, 3);
  shard(net, options);
  Data data = part_of(make_data(8, 6, 3), world.rank(), world.size());
  data = {data.x.to(device), data.y.to(device)};
  for (int step = 0; step < 3; ++step) {
    for (auto& parameter : net->parameters()) parameter.mutable_grad().reset();
    for (const bool all : {false, true}) {
      if (!all && !setting.partial) continue;
      if (setting.hybrid) set_requires_all_reduce(net, all);
      waits->seen = 0;
      torch::mse_loss(net->forward(data.x).to(torch::kFloat), data.y).backward();
    }
    const torch::NoGradGuard no_grad;
    for (auto& parameter : net->parameters())
      if (parameter.numel() > 0)
        parameter.add_(parameter.grad().to(parameter.scalar_type()), -0.05);
  }
  tessera::fsdp::detail::Root::use_streams(nullptr);
  std::vector<torch::Tensor> out;
  for (const auto& parameter : net->parameters()) out.push_back(parameter.detach().cpu().clone());
  return out;
}

struct Outcome {
  std::vector<std::string> findings;
  std::vector<torch::Tensor> params;  // of rank 0
  int dropped = 0;                    // waits of rank 0

  bool differs_from(const Outcome& other) const {
    for (std::size_t p = 0; p < params.size(); ++p)
      if (!torch::equal(params[p], other.params[p])) return true;
    return false;
  }
};

Outcome outcome_of(const Setting& setting, const Missing& missing = {}) {
  sim::set_lateness(7, setting.offload ? 2000 : 300);
  Outcome out;
  std::vector<std::shared_ptr<Waits>> waits;
  const int ranks = setting.hybrid ? 4 : 2;
  for (int rank = 0; rank < ranks; ++rank) waits.push_back(std::make_shared<Waits>(Waits{missing}));
  sim::run_ranks(ranks, [&](World& world) {
    auto params = train(world, setting, waits[static_cast<std::size_t>(world.rank())]);
    if (world.rank() == 0) out.params = std::move(params);
  });
  sim::set_lateness(0, 0);
  out.dropped = waits[0]->dropped;
  out.findings = sim::take_findings();
  return out;
}

}  // namespace

TEST_CASE("every wait of the table is missed when it is taken away", "[sim][races]") {
  struct Row {
    const char* what;
    Setting setting;
    Missing missing;
  };
  const auto row = GENERATE(
      Row{"a step's gathers see what the optimizer left", {}, {"gather", "compute", true, false}},
      Row{"parameters are used when they are there", {}, {"compute", "gather"}},
      Row{"memory is gathered into when compute is done with it",
          {},
          {"gather", "compute", false, true}},
      Row{"gradients are reduced when they are there", {}, {"reduce", "compute"}},
      Row{"gradients are read when they are reduced", {}, {"compute", "reduce"}},
      Row{"sums over the shards go on to the replicas when they are there",
          {.hybrid = true},
          {"all-reduce", "reduce"}},
      Row{"a third sum waits for the first one's all-reduce",
          {.hybrid = true},
          {"reduce", "all-reduce"}},
      Row{"gradients are read when they are all-reduced",
          {.hybrid = true},
          {"compute", "all-reduce"}});
  INFO(row.what << ": " << row.missing.waiter << " <- " << row.missing.awaited);
  const Outcome whole = outcome_of(row.setting);
  for (const std::string& finding : whole.findings) FAIL_CHECK(finding);
  CHECK(whole.dropped == 0);
  const Outcome lax = outcome_of(row.setting, row.missing);
  CHECK(lax.dropped > 0);
  CHECK_FALSE(lax.findings.empty());
}

TEST_CASE("every race that was mended is found when it is put back", "[sim][races]") {
  struct Row {
    const char* what;
    Setting setting;
    Race race;
  };
  const auto row = GENERATE(
      Row{"partial sums are freed on the stream that held them",
          {.hybrid = true, .partial = true},
          Race::kPartialFreedElsewhere},
      Row{"a sum over the shards lives until its all-reduce has read it",
          {.hybrid = true},
          Race::kOutputFreedEarly},
      Row{"unsharded gradients live until they are reduced", {}, Race::kInputFreedEarly},
      Row{"gradients are lowered after the last reduction", {.low = true}, Race::kLoweredEarly},
      Row{"the host reads offloaded gradients when they are there",
          {.offload = true},
          Race::kOffloadUnordered});
  INFO(row.what);
  const Outcome whole = outcome_of(row.setting);
  for (const std::string& finding : whole.findings) FAIL_CHECK(finding);
  put_back(row.race);
  const Outcome raced = outcome_of(row.setting);
  put_back(Race::kNone);
  // Clocks do not see what the host does: that one is seen by its values.
  CHECK((row.setting.offload ? raced.differs_from(whole) : !raced.findings.empty()));
}

}  // namespace sim_races_test

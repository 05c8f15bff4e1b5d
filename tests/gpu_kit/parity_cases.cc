// Values: whatever the options, ranks on a device train what the plain model trains on the CPU.
#include <filesystem>
#include <limits>

#include "tests/fsdp/strategies.h"
#include "tests/gpu_kit/report.h"
#include "tests/gpu_kit/training.h"

namespace tessera::gpu_kit {

using fsdp::MemoryLayout;
using fsdp::ShardingStrategy;

namespace {

constexpr MemoryLayout kLayouts[] = {MemoryLayout::kFlat, MemoryLayout::kPerParameter};

Training with(ShardingStrategy strategy, MemoryLayout layout) {
  Training training;
  training.options.strategy = strategy;
  training.options.layout = layout;
  return training;
}

void set_low(Training& training) {
  training.options.mixed_precision.param_dtype = torch::kBFloat16;
  training.options.mixed_precision.reduce_dtype = torch::kFloat;
}

RankCase trains(const std::string& name, const Training& training) {
  return {name, [training](RankContext& context) { expect_trains_as_plain(context, training); }};
}

/// `change` on every layout.
std::vector<RankCase> on_layouts(const std::string& name, ShardingStrategy strategy,
                                 const std::function<void(Training&)>& change) {
  std::vector<RankCase> out;
  for (const MemoryLayout layout : kLayouts) {
    Training training = with(strategy, layout);
    change(training);
    out.push_back(trains(name + ", " + text_of(training.options), training));
  }
  return out;
}

void append(std::vector<RankCase>& to, std::vector<RankCase> more) {
  for (RankCase& each : more) to.push_back(std::move(each));
}

std::vector<RankCase> strategies() {
  std::vector<RankCase> out;
  for (const ShardingStrategy strategy : fsdp::test::strategies_where(/*hybrid=*/false))
    for (const MemoryLayout layout : kLayouts)
      for (const bool low : {false, true}) {
        Training training = with(strategy, layout);
        if (low) set_low(training);
        out.push_back(trains(text_of(training.options), training));
      }
  return out;
}

/// As a job of one process: no collective, but streams, casts and offload.
std::vector<RankCase> one_rank() {
  std::vector<RankCase> out;
  for (const ShardingStrategy strategy : fsdp::test::strategies_where(/*hybrid=*/false))
    for (const MemoryLayout layout : kLayouts)
      for (const bool offload : {false, true})
        for (const bool low : {false, true})
          for (const bool moved : {false, true}) {
            Training training = with(strategy, layout);
            training.options.cpu_offload.offload_params = offload;
            training.moved = moved;
            if (low)
              set_low(training);
            else
              training.clip_p = 2;
            out.push_back(trains(text_of(training.options) + (moved ? ", moved" : ""), training));
          }
  return out;
}

std::vector<RankCase> hybrid() {
  std::vector<RankCase> out;
  for (const ShardingStrategy strategy : fsdp::test::hybrid_strategies()) {
    append(out, on_layouts("replicas", strategy, [](Training&) {}));
    append(out, on_layouts("partial sums", strategy, [](Training& training) {
             training.microbatches = {Sync::kShards, Sync::kShards, Sync::kAll};
           }));
  }
  return out;
}

std::vector<RankCase> accumulate() {
  std::vector<RankCase> out;
  for (const ShardingStrategy strategy : fsdp::test::strategies_where(/*hybrid=*/false)) {
    append(out, on_layouts("unsynchronised", strategy, [](Training& training) {
             training.microbatches = {Sync::kNone, Sync::kAll};
           }));
    append(out, on_layouts("reduced each time", strategy, [](Training& training) {
             training.microbatches = {Sync::kAll, Sync::kAll};
           }));
  }
  return out;
}

std::vector<RankCase> offload() {
  std::vector<RankCase> out;
  for (const ShardingStrategy strategy : fsdp::test::strategies_where(/*hybrid=*/false))
    append(out, on_layouts("one backward", strategy, [](Training& training) {
             training.options.cpu_offload.offload_params = true;
           }));
  append(out, on_layouts("two backwards", ShardingStrategy::kFullShard, [](Training& training) {
           training.options.cpu_offload.offload_params = true;
           training.microbatches = {Sync::kAll, Sync::kAll};
         }));
  return out;
}

std::vector<RankCase> schedules() {
  using Change = std::function<void(fsdp::Options&)>;
  const std::pair<const char*, Change> changes[] = {
      {"forward prefetch of 2",
       [](fsdp::Options& o) { o.forward_prefetch = true, o.max_prefetch_count = 2; }},
      {"no limit", [](fsdp::Options& o) { o.limit_all_gathers = false; }},
      {"backward prefetch after",
       [](fsdp::Options& o) { o.backward_prefetch = fsdp::BackwardPrefetch::kPost; }},
      {"no backward prefetch",
       [](fsdp::Options& o) { o.backward_prefetch = fsdp::BackwardPrefetch::kNone; }},
      {"kept over 2 ranks", [](fsdp::Options& o) { o.reshard_after_forward = 2; }},
      {"a gather stream per group", [](fsdp::Options& o) { o.unshard_stream_per_group = true; }},
      {"all calls checked", [](fsdp::Options& o) { o.check = fsdp::Check::kFull; }},
      {"no checks", [](fsdp::Options& o) { o.check = fsdp::Check::kOff; }}};
  std::vector<RankCase> out;
  for (const auto& [name, change] : changes)
    append(out, on_layouts(name, ShardingStrategy::kFullShard,
                           [&](Training& training) { change(training.options); }));
  return out;
}

std::vector<RankCase> clipping() {
  std::vector<RankCase> out;
  for (const double p : {1.0, 2.0, std::numeric_limits<double>::infinity()})
    append(out, on_layouts(fmt::format("norm {}", p), ShardingStrategy::kFullShard,
                           [p](Training& training) { training.clip_p = p; }));
  append(out, on_layouts("norm 2", ShardingStrategy::kHybridShard,
                         [](Training& training) { training.clip_p = 2; }));
  return out;
}

std::vector<RankCase> unused() {
  std::vector<RankCase> out;
  for (const bool find : {false, true})
    append(out, on_layouts(find ? "found" : "not looked for", ShardingStrategy::kFullShard,
                           [find](Training& training) {
                             training.spare = true;
                             training.options.find_unused_parameters = find;
                           }));
  return out;
}

/// Gradients of the whole model after one backward, gathered, against the plain one's.
void expect_full_gradients(RankContext& context, const fsdp::SummonOptions& summon,
                           MemoryLayout layout) {
  fsdp::Options options;
  options.mesh = context.world.mesh();
  options.device = context.device;
  options.layout = layout;
  Net net = make_net(), plain = make_net();
  shard(net, options);
  const Data mine = microbatch(0, context.world, context.device), all = microbatch(0);
  torch::mse_loss(net->forward(mine.x), mine.y).backward();
  torch::mse_loss(plain->forward(all.x), all.y).backward();
  const fsdp::SummonFullParams full(net, summon);
  const auto theirs = plain->named_parameters();
  for (const auto& parameter : net->named_parameters()) {
    const torch::Tensor &value = parameter.value(), &want = theirs[parameter.key()];
    expect(torch::equal(value.detach().cpu(), want.detach()), parameter.key() + " differs");
    expect(value.device().is_cpu() == (summon.offload_to_cpu || context.device.is_cpu()),
           parameter.key() + " is on another device");
    if (!summon.with_grads) continue;
    expect(value.grad().defined(), parameter.key() + " has no gradient");
    expect(torch::allclose(value.grad().cpu(), want.grad(), 1e-4, 1e-5),
           "the gradient of " + parameter.key() + " differs");
  }
}

std::vector<RankCase> summoning() {
  std::vector<RankCase> out;
  for (const bool grads : {false, true})
    for (const bool host : {false, true})
      for (const MemoryLayout layout : kLayouts)
        out.push_back(
            {fmt::format("{}{}{}", layout == MemoryLayout::kFlat ? "flat" : "per parameter",
                         grads ? " with gradients" : "", host ? " to the host" : ""),
             [=](RankContext& context) {
               fsdp::SummonOptions summon;
               summon.with_grads = grads;
               summon.offload_to_cpu = host;
               expect_full_gradients(context, summon, layout);
             }});
  return out;
}

/// Other values on every rank: all get rank 0's.
void expect_synchronised(RankContext& context, MemoryLayout layout, bool moved) {
  fsdp::Options options;
  options.mesh = context.world.mesh();
  options.device = context.device;
  options.layout = layout;
  options.sync_module_states = true;
  Net net = make_net(), plain = make_net();
  if (context.world.rank() > 0) {
    const torch::NoGradGuard no_grad;
    for (torch::Tensor& parameter : net->parameters()) parameter.fill_(context.world.rank());
  }
  if (moved) net->to(context.device);
  shard(net, options);
  const fsdp::SummonFullParams full(net);
  const auto theirs = plain->named_parameters();
  for (const auto& parameter : net->named_parameters())
    expect(torch::equal(parameter.value().detach().cpu(), theirs[parameter.key()].detach()),
           parameter.key() + " is not rank 0's");
}

std::vector<RankCase> synchronising() {
  std::vector<RankCase> out;
  for (const bool moved : {true, false})
    for (const MemoryLayout layout : kLayouts)
      out.push_back({fmt::format("{}, {}", layout == MemoryLayout::kFlat ? "flat" : "per parameter",
                                 moved ? "module on the device" : "module on the CPU"),
                     [=](RankContext& context) { expect_synchronised(context, layout, moved); }});
  return out;
}

/// Every gradient is in the type that was asked for, the last reduced unit's too.
void expect_low_gradients(RankContext& context, MemoryLayout layout) {
  Training training = with(ShardingStrategy::kFullShard, layout);
  set_low(training);
  fsdp::Options options = training.options;
  options.mixed_precision.keep_low_precision_grads = true;
  options.mesh = context.world.mesh();
  options.device = context.device;
  Net net = make_net();
  shard(net, options);
  const Data mine = microbatch(0, context.world, context.device);
  torch::mse_loss(net->forward(mine.x).to(torch::kFloat), mine.y).backward();
  for (const auto& parameter : net->named_parameters())
    if (parameter.value().numel() > 0)
      expect(parameter.value().grad().scalar_type() == torch::kBFloat16,
             "the gradient of " + parameter.key() + " is not bf16");
}

std::vector<RankCase> rest() {
  std::vector<RankCase> out;
  const auto full = ShardingStrategy::kFullShard;
  append(out, on_layouts("recomputed", full, [](Training& t) { t.recompute = true; }));
  append(out, on_layouts("frozen blocks", full, [](Training& t) { t.freeze_blocks = true; }));
  append(out,
         on_layouts("steps in backward", full, [](Training& t) { t.step_in_backward = true; }));
  append(out, on_layouts("compressed gradients", full, [](Training& t) { t.compress = true; }));
  for (const MemoryLayout layout : kLayouts)
    out.push_back({fmt::format("gradients kept in bf16, {}",
                               layout == MemoryLayout::kFlat ? "flat" : "per parameter"),
                   [=](RankContext& context) { expect_low_gradients(context, layout); }});
  return out;
}

/// Saves a sharded model, trains another one on from there, and ends where the first ends.
void expect_resumes(RankContext& context, MemoryLayout layout, bool low, bool in_background) {
  Training training = with(ShardingStrategy::kFullShard, layout);
  if (low) set_low(training);
  fsdp::Options options = training.options;
  options.mesh = context.world.mesh();
  options.device = context.device;
  const std::string folder =
      (std::filesystem::temp_directory_path() /
       fmt::format("tessera-kit-{}", std::getenv("MASTER_PORT") ? std::getenv("MASTER_PORT") : "0"))
          .string();
  const Data data = microbatch(0, context.world, context.device);
  const auto step = [&](Net& net, fsdp::FusedAdamW& optimizer) {
    optimizer.zero_grad();
    const auto loss = torch::mse_loss(net->forward(data.x).to(torch::kFloat), data.y);
    loss.backward();
    optimizer.step();
    return loss.item<double>();
  };
  Net net = make_net(), again = make_net();
  shard(net, options);
  shard(again, options);
  fsdp::FusedAdamW first(net->parameters(), torch::optim::AdamWOptions(1e-2));
  fsdp::FusedAdamW second(again->parameters(), torch::optim::AdamWOptions(1e-2));
  step(net, first);
  RankGroup& ranks = context.world.ranks();
  SaveOptions save_options;
  save_options.force = true;
  PendingSave pending;
  if (in_background)
    pending = save_async(folder, fsdp::state_dict(net, first), ranks, save_options);
  else
    save(folder, fsdp::state_dict(net, first), ranks, save_options);
  std::vector<double> losses, resumed;
  for (int i = 0; i < 3; ++i) losses.push_back(step(net, first));
  if (in_background) pending.wait();
  load(folder, fsdp::state_dict(again, second), ranks);
  for (int i = 0; i < 3; ++i) resumed.push_back(step(again, second));
  expect(losses == resumed,
         fmt::format("losses after loading are {:.9g} .., not {:.9g} ..", resumed[0], losses[0]));
  ranks.barrier();
  if (context.world.rank() == 0) std::filesystem::remove_all(folder);
}

std::vector<RankCase> saving() {
  std::vector<RankCase> out;
  for (const MemoryLayout layout : kLayouts)
    for (const bool low : {false, true})
      for (const bool background : {false, true})
        out.push_back(
            {fmt::format("{}{}{}", layout == MemoryLayout::kFlat ? "flat" : "per parameter",
                         low ? " bf16" : "", background ? " in the background" : ""),
             [=](RankContext& context) { expect_resumes(context, layout, low, background); }});
  return out;
}

}  // namespace

std::vector<RankGroupOfCases> parity_groups() {
  return {
      {"one rank", 1, one_rank},
      {"strategies", 0, strategies},
      {"hybrid", 0, hybrid},
      {"accumulate", 0, accumulate},
      {"offload", 0, offload},
      {"schedules", 0, schedules},
      {"rest", 0, rest},
      {"clip", 0, clipping},
      {"unused", 0, unused},
      {"summon", 0, summoning},
      {"synchronise", 0, synchronising},
      {"save and load", 0, saving},
  };
}

}  // namespace tessera::gpu_kit

// Races: streams that are late by chance, against the same run with none late, bit for bit. What
// waits for the right event gives the same values however late; cuBLAS does where each stream has
// a workspace of its own (CUBLAS_WORKSPACE_CONFIG, which the launcher sets).
#include "tests/fsdp/strategies.h"
#include "tests/gpu_kit/report.h"
#include "tests/gpu_kit/staged_comm.h"
#include "tests/gpu_kit/training.h"

namespace tessera::gpu_kit {

namespace {

constexpr int kMostLateUs = 400;

Training racing(fsdp::ShardingStrategy strategy, fsdp::MemoryLayout layout) {
  Training training;
  training.options.strategy = strategy;
  training.options.layout = layout;
  training.options.forward_prefetch = true;
  if (fsdp::strategy_of(strategy).hybrid()) training.microbatches = {Sync::kShards, Sync::kAll};
  return training;
}

void expect_no_race(RankContext& context, const Training& training, int seeds) {
  set_lateness(0, 0);
  const Trained punctual = train_ranks(context, training);
  const auto rank = static_cast<std::uint64_t>(context.world.rank());
  for (int seed = 1; seed <= seeds; ++seed) {
    set_lateness(static_cast<std::uint64_t>(seed) * 64 + rank, kMostLateUs);
    const Trained late = train_ranks(context, training);
    set_lateness(0, 0);
    try {
      expect_bit_equal(late, punctual);
    } catch (const std::exception& error) {
      expect(false, fmt::format("seed {}: {}", seed, error.what()));
    }
  }
}

std::vector<RankCase> late_cases(int seeds) {
  std::vector<RankCase> out;
  for (const fsdp::ShardingStrategy strategy : fsdp::test::all_strategies())
    for (const auto layout : {fsdp::MemoryLayout::kFlat, fsdp::MemoryLayout::kPerParameter}) {
      const Training training = racing(strategy, layout);
      out.push_back({fmt::format("{}, {} seeds", text_of(training.options), seeds),
                     [=](RankContext& context) { expect_no_race(context, training, seeds); }});
    }
  for (const bool limit : {true, false}) {
    Training training = racing(fsdp::ShardingStrategy::kFullShard, fsdp::MemoryLayout::kFlat);
    training.options.cpu_offload.offload_params = limit;
    training.options.limit_all_gathers = limit;
    training.options.mixed_precision.param_dtype = torch::kBFloat16;
    training.options.mixed_precision.reduce_dtype = torch::kFloat;
    out.push_back({fmt::format("{}{}, {} seeds", text_of(training.options),
                               limit ? "" : " without limit", seeds),
                   [=](RankContext& context) { expect_no_race(context, training, seeds); }});
  }
  return out;
}

}  // namespace

std::vector<RankGroupOfCases> race_groups(int seeds) {
  return {{"late streams", 0, [seeds] { return late_cases(seeds); }}};
}

}  // namespace tessera::gpu_kit

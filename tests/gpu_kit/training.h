#pragma once
// One training, on ranks and on one plain process: losses and parameters at the end.
#include <optional>
#include <vector>

#include "tests/gpu_kit/models.h"
#include "tests/gpu_kit/rank_cases.h"

namespace tessera::gpu_kit {

/// What becomes of the gradients of one of a step's microbatches.
enum class Sync { kNone, kShards, kAll };

struct Training {
  fsdp::Options options;  // of mesh and device the case fills in
  int steps = 4;
  std::vector<Sync> microbatches = {Sync::kAll};
  std::optional<double> clip_p;  // clips to 0.1 by that norm
  bool moved = false;            // to the device, before it is sharded
  bool spare = false;            // the model has parameters that nobody uses
  bool recompute = false;
  bool freeze_blocks = false;
  bool step_in_backward = false;
  bool compress = false;  // gradients travel in bf16

  bool low() const { return options.mixed_precision.param_dtype.has_value(); }
};

struct Trained {
  std::vector<double> losses;
  std::vector<std::pair<std::string, torch::Tensor>> parameters;  // whole, on the CPU
};

Trained train_plain(const Training& training);
/// Collective.
Trained train_ranks(RankContext& context, const Training& training);
void expect_same(const Trained& ours, const Trained& plain, double tolerance);
void expect_bit_equal(const Trained& ours, const Trained& theirs);
/// Both, and compares them. Collective.
void expect_trains_as_plain(RankContext& context, const Training& training);

/// Over all ranks; for hybrid strategies two replicas.
fsdp::DeviceMesh mesh_for(const fsdp::World& world, fsdp::ShardingStrategy strategy);
/// "FULL_SHARD flat bf16 offload".
std::string text_of(const fsdp::Options& options);

}  // namespace tessera::gpu_kit

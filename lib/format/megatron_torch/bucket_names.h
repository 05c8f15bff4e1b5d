#pragma once
// Names of Megatron-core's optimizer buckets, and what a target without a place for them says:
//
//   optimizer.distributed.dp_group_idx_I.gbuf_idx_G.dtype_D.bucket_idx_B.{param,exp_avg,exp_avg_sq}
//
// Source: megatron/core/optimizer/distrib_optimizer.py (core 0.16). Pure.
#include <tessera/state/manifest.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>

namespace tessera::megatron_torch {

/// A bucket tensor's name, cut.
struct BucketName {
  std::string group;  // "", or "chained_1.", and the number of the group
  std::int64_t group_index = 0;
  std::int64_t buffer = 0, bucket = 0;
  std::string dtype;  // of the weights: "bfloat16"
  std::string leaf;
};

/// nullopt: the name of something else.
std::optional<BucketName> parse_bucket_name(std::string_view name);

bool is_bucket(std::string_view tensor);

/// The model-parallel groups whose buckets are there.
std::set<std::string> bucket_groups(const Manifest& manifest);

/// Model-parallel ranks that keep what is not decoded as it stands.
struct TargetRanks {
  std::int64_t tp = 1, pp = 1;
  bool same_sizes = false;  // as in the source, as far as its args say
};
/// Throws kUnsupported where the optimizer lies in buckets, or in objects of model-parallel groups
/// (dp_zero_gather_scatter), and the target's ranks are not those that wrote them. nullopt: a
/// target that keeps neither.
void check_undecoded(const Manifest& manifest, const std::optional<TargetRanks>& target);

}  // namespace tessera::megatron_torch

#pragma once
// What the distributed optimizer of each model-parallel group keeps beside its buckets, as objects:
//
//   optimizer.distributed.dp_group_idx_I.optimizer/shard_0_1      [{"param_groups": [{lr, ...}, ...]}]
//   optimizer.distributed.dp_group_idx_I.grad_scaler/shard_0_1    [{...}]
//   optimizer.distributed.dp_group_idx_I.per_bucket_numel/shard_0_1, ..._unpadded: sizes of buckets
//
// Source: megatron/core/optimizer/distrib_optimizer.py (sharded_state_dict), core 0.16.
#include <tessera/state/manifest.h>

namespace tessera::megatron_dist {

/// For a manifest whose buckets became state of parameters: takes these objects out, and returns
/// them as the one dict that fully_reshardable keeps under `optimizer` of the common state. Empty:
/// there are none, or groups differ; all stay then.
ValueDict take_group_options(Manifest& manifest);

}  // namespace tessera::megatron_dist

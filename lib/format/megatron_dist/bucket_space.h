#pragma once
// Optimizer state in bucket space (dp_reshardable, fully_sharded_bucket_space): 1-D tensors
//
//   optimizer.distributed.dp_group_idx_I.gbuf_idx_G.dtype_D.bucket_idx_B.{param,exp_avg,exp_avg_sq}
//
// Their chunks are pieces of parameters and the gaps between them; which parameter a piece is of
// is known to the model alone (param_index_map): its parameters in reverse order, each from a
// multiple of 64 elements on. The files show which of them a group holds, and often their order
// (group_model.h); the sizes of buckets and the borders of chunks must agree with it. Source:
// megatron/core/optimizer/distrib_optimizer.py (core 0.16).
#include <tessera/state/manifest.h>

#include <cstddef>
#include <string>

namespace tessera::megatron_dist {

struct BucketDecoding {
  std::size_t buckets = 0;  // tensors
  std::string missing;      // why they stay as they are; "": they became state of parameters
};
/// Buckets become `optimizer.state.<leaf>.<parameter>`, pieces of parameters their chunks. What
/// cannot be decoded stays, all of it. `manifest`: not located yet.
BucketDecoding decode_buckets(Manifest& manifest);

}  // namespace tessera::megatron_dist

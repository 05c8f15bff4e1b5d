#pragma once
// Where the distributed optimizer keeps each parameter in its flat buffers (param, exp_avg,
// exp_avg_sq), as distrib_optim.pt stores them: all buckets behind each other without the padding
// at a bucket's end.
//
//   parameters in reverse order, each from a multiple of 64 elements of its bucket on
//   a bucket ends when it has at least `bucket_size` elements, and around a shared embedding
//   sizes 7, 5, 3 (A, B, C):  C [0,3)  B [64,69)  A [128,135)      unpadded 135
//
// Source: megatron/core/distributed/param_and_grad_buffer.py (core 0.16). Pure.
#include <cstdint>
#include <optional>
#include <vector>

namespace tessera::megatron_torch {

struct BucketParam {
  std::int64_t numel = 0;
  bool shared_embedding = false;
};

struct BucketLayout {
  std::vector<std::int64_t> begin;  // per parameter, in the order given (not reversed)
  std::int64_t numel_unpadded = 0;
  bool operator==(const BucketLayout&) const = default;
};

/// `bucket_size`: nullopt: one bucket. `split_shared`: shared embeddings have buckets of their own.
/// Throws kCorrupt when sizes overflow.
BucketLayout bucket_layout(const std::vector<BucketParam>& params,
                           std::optional<std::int64_t> bucket_size, bool split_shared);

}  // namespace tessera::megatron_torch

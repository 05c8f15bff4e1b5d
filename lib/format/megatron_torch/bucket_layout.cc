#include "lib/format/megatron_torch/bucket_layout.h"

#include <tessera/base/checked.h>
#include <tessera/base/error.h>

#include <algorithm>

namespace tessera::megatron_torch {
namespace {

constexpr std::int64_t kAlignment = 64;

std::int64_t sum(std::int64_t a, std::int64_t b) {
  const auto out = checked_add(a, b);
  if (!out) fail(Code::kCorrupt, "parameters of more than 2^63 elements in all");
  return *out;
}

std::int64_t aligned(std::int64_t n) {
  return n % kAlignment == 0 ? n : sum(n, kAlignment - n % kAlignment);
}

}  // namespace

BucketLayout bucket_layout(const std::vector<BucketParam>& params,
                           std::optional<std::int64_t> bucket_size, bool split_shared) {
  BucketLayout out;
  out.begin.resize(params.size());
  std::int64_t base = 0;    // of the open bucket, in the stored buffer
  std::int64_t inside = 0;  // end of the open bucket, from its base
  bool open = false;
  const auto close = [&] {
    base = sum(base, inside);
    inside = 0;
    open = false;
  };
  for (std::size_t k = params.size(); k-- > 0;) {
    const bool alone = params[k].shared_embedding && split_shared;
    inside = aligned(inside);
    if (alone && open) close();
    out.begin[k] = sum(base, inside);
    inside = sum(inside, params[k].numel);
    open = true;
    if (alone || (bucket_size && inside >= *bucket_size)) close();
  }
  out.numel_unpadded = sum(base, inside);
  return out;
}

}  // namespace tessera::megatron_torch

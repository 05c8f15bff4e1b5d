// The paddings of every framework that pads, for 1 to 1000 elements (rows) over 1 to 17 ranks, held
// against the formulas written out:
//
//   ZeRO-3, FairScale, FSDP   shard = ceil(n / W), padding W * ceil(n / W) - n, at the end
//   ZeRO-1, ZeRO-2            the total goes up to a multiple of 2 * W
//   Megatron's vocabulary     ceil(V / (d * TP)) * d * TP rows
#include <tessera/layout/flat_layout.h>

#include <catch2/catch.hpp>

#include "lib/format/deepspeed_zero/partition.h"
#include "lib/format/fairscale_fsdp/shards.h"
#include "lib/format/megatron_torch/target_cut.h"

namespace tessera::padding_formulas_test {
namespace {

constexpr std::int64_t kMostElements = 1000, kMostRanks = 17;

/// Elements of rank `r`'s part of `part` elements each that lie at or past `n`: counted, not
/// computed.
std::int64_t past_end(std::int64_t n, std::int64_t part, std::int64_t r) {
  std::int64_t count = 0;
  for (std::int64_t i = r * part; i < (r + 1) * part; ++i) count += i >= n;
  return count;
}

std::int64_t smallest_part(std::int64_t n, std::int64_t ranks, std::int64_t multiple) {
  std::int64_t total = 0;
  while (total < n || total % (ranks * multiple) != 0) ++total;
  return total / ranks;
}

template <class Check>
void for_each_size(Check&& check) {
  for (std::int64_t n = 1; n <= kMostElements; ++n)
    for (std::int64_t ranks = 1; ranks <= kMostRanks; ++ranks)
      if (!check(n, ranks)) FAIL("n = " << n << ", W = " << ranks);
}

}  // namespace

TEST_CASE("ZeRO-3 pads every parameter to a multiple of the ranks") {
  for_each_size([](std::int64_t n, std::int64_t ranks) {
    std::int64_t padding = 0;
    for (std::int64_t r = 0; r < ranks; ++r) {
      const auto slice = deepspeed::slice_of(n, ranks, r);
      const std::int64_t real = slice.end - slice.begin;
      if (slice.room != (n + ranks - 1) / ranks) return false;
      if (slice.room - real != past_end(n, slice.room, r)) return false;
      padding += slice.room - real;
    }
    return padding == ranks * ((n + ranks - 1) / ranks) - n;
  });
}

TEST_CASE("ZeRO-1 and ZeRO-2 pad a group to a multiple of twice the ranks") {
  for_each_size([](std::int64_t n, std::int64_t ranks) {
    const std::int64_t first = n / 3;
    const FlatLayout group({{"a", Shape{first}}, {"b", Shape{n - first}}}, ranks, 1,
                           deepspeed::kPartMultiple);
    if (group.shard_numel() != smallest_part(n, ranks, 2)) return false;
    for (std::int64_t r = 0; r < ranks; ++r)
      if (group.tail_padded(r) != past_end(n, group.shard_numel(), r)) return false;
    return true;
  });
}

TEST_CASE("FSDP and FairScale pad a flat parameter to a multiple of the ranks, rank by rank") {
  for_each_size([](std::int64_t n, std::int64_t ranks) {
    const FlatLayout layout({{"w", Shape{n}}}, ranks);
    if (layout.shard_numel() != smallest_part(n, ranks, 1)) return false;
    std::vector<fairscale::StoredShard> shards;
    for (std::int64_t r = 0; r < ranks; ++r) {
      const std::int64_t padding = past_end(n, layout.shard_numel(), r);
      if (layout.num_padded(r) != padding) return false;
      shards.push_back({true, layout.shard_numel(), padding});
    }
    // FairScale's reader takes exactly these, and no element twice.
    const fairscale::ShardPlan plan = fairscale::arrange_shards(n, shards, false);
    std::int64_t covered = 0;
    for (const FlatRun& run : plan.places.runs()) covered += run.numel();
    return plan.problem.empty() && covered == n;
  });
}

TEST_CASE("Megatron pads the vocabulary to a multiple of the divisor times the ranks, once") {
  const Manifest nothing;
  const TargetRequest request;
  for (const std::int64_t divisor : {1, 4, 128}) {
    const megatron_torch::Args args(
        Value::dict({{Value::string("make_vocab_size_divisible_by"), Value::integer(divisor)}}));
    for (std::int64_t ranks = 1; ranks <= kMostRanks; ++ranks) {
      const megatron_torch::TargetCut cut(nothing, request, args, ranks);
      for (std::int64_t rows = 1; rows <= kMostElements; ++rows) {
        const std::int64_t padded = cut.padded_rows(rows, "embedding");
        const std::int64_t multiple = divisor * ranks;
        const bool right = padded == (rows + multiple - 1) / multiple * multiple &&
                           cut.padded_rows(padded, "embedding") == padded;
        if (!right) FAIL("rows = " << rows << ", d = " << divisor << ", TP = " << ranks);
      }
    }
    const megatron_torch::TargetCut cut(nothing, request, args, 8);
    CHECK(cut.padded_rows(151'936, "embedding") == (divisor == 128 ? 152'576 : 151'936));
  }
}

}  // namespace tessera::padding_formulas_test

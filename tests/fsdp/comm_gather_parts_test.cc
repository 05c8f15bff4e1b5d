// What ranks hold a part each of is seen by all, in as much memory as it takes.
#include <algorithm>
#include <numeric>

#include "fsdp_core/bridge/gather_parts.h"
#include "tests/fsdp/models.h"
#include "tests/fsdp/torch_and_catch.h"

namespace comm_gather_parts_test {

using namespace tessera::fsdp;
using namespace tessera::fsdp::test;

namespace {

/// Element i of rank r's part.
torch::Tensor part_of(int rank, std::int64_t length, torch::Dtype type) {
  return (torch::arange(length) + 100 * rank).to(type);
}

}  // namespace

TEST_CASE("parts of any lengths are seen in the order of ranks", "[comm]") {
  using Lengths = std::vector<std::int64_t>;
  const Lengths lengths = GENERATE(Lengths{3, 3, 3}, Lengths{3, 3, 1}, Lengths{0, 5, 0},
                                   Lengths{5, 0, 0}, Lengths{1, 0, 4}, Lengths{0, 0, 0});
  const auto type = GENERATE(torch::kFloat, torch::kBFloat16, torch::kLong);
  const std::string backend = GENERATE("threads", "gloo");
  CAPTURE(lengths, backend);
  WorldOptions options;
  options.backend = backend;
  run_threads(
      3,
      [&](World& world) {
        Communicator& ranks = *world.communicator();
        const auto own = lengths[static_cast<std::size_t>(world.rank())];
        const CommCounts before = ranks.counts();
        std::vector<int> seen;
        gather_parts(ranks, part_of(world.rank(), own, type), lengths,
                     {"parts", CommPhase::kSummon}, [&](int rank, const at::Tensor& part) {
                       seen.push_back(rank);
                       const std::int64_t length = lengths[static_cast<std::size_t>(rank)];
                       RANK_CHECK(torch::equal(part, part_of(rank, length, type)));
                     });
        // Ranks without a part may be passed by, others not.
        RANK_CHECK(std::ranges::is_sorted(seen));
        for (int r = 0; r < 3; ++r)
          RANK_CHECK(lengths[static_cast<std::size_t>(r)] == 0 || std::ranges::count(seen, r) == 1);
        // Padding is sent where it is less than the parts, and otherwise each part alone.
        const std::int64_t total = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
        const bool padded = total > 0 && 3 * std::ranges::max(lengths) <= 2 * total;
        const CommCounts after = ranks.counts();
        RANK_CHECK(after.all_gathers - before.all_gathers == (padded ? 1 : 0));
        RANK_CHECK(after.broadcasts - before.broadcasts ==
                   (padded ? 0 : 3 - std::ranges::count(lengths, std::int64_t{0})));
      },
      options);
}

}  // namespace comm_gather_parts_test

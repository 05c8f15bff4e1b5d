// What follows from the ranks that file names speak of.
#include "lib/format/rank_names.h"

#include <catch2/catch.hpp>
#include <map>
#include <set>

namespace rank_names_test {

using namespace tessera;

TEST_CASE("names bound the number of ranks by the files that are there") {
  CHECK(most_ranks(1) < 1000000);
  CHECK(most_ranks(1) >= 4096);  // one file of a few thousand ranks is still read
  CHECK(most_ranks(1 << 16) >= 1 << 16);
  CHECK(most_ranks(8, 2) * 2 <= most_ranks(8));
  CHECK(most_ranks(std::size_t{1} << 40) == 1 << 20);
}

TEST_CASE("missing ranks are listed, a few of them by number") {
  CHECK(missing_ranks(std::set<std::int64_t>{0, 2}, 4) == std::vector<std::int64_t>{1, 3});
  CHECK(missing_ranks(std::map<std::int64_t, int>{{0, 1}}, 1).empty());
  CHECK(list_ranks({1, 3}) == "1, 3");
  CHECK(list_ranks(missing_ranks(std::set<std::int64_t>(), 10)) ==
        "0, 1, 2, 3, 4, 5, 6, 7 and 2 more");
}

TEST_CASE("a missing file's name is as wide as its neighbours'") {
  CHECK(with_number("rank_00.pt", 5, 7, 3) == "rank_03.pt");
  CHECK(with_number("rank_00.pt", 5, 7, 123) == "rank_123.pt");
  CHECK(with_number("rank0.pt", 4, 5, 12) == "rank12.pt");
  CHECK(with_number("w4-12-b", 3, 5, 7) == "w4-7-b");
}

}  // namespace rank_names_test

#include <tessera/base/error.h>
#include <tessera/layout/mesh.h>
#include <tessera/layout/placement.h>

#include <catch2/catch.hpp>

namespace mesh_test {

using namespace tessera;

namespace {

template <class F>
void check_refused(F&& f) {
  try {
    f();
    FAIL("accepted");
  } catch (const Error& error) {
    CHECK(error.code() == Code::kInvalidArgument);
  }
}

}  // namespace

TEST_CASE("a mesh reads and prints") {
  const Mesh mesh = Mesh::parse("dp=2,tp=4");
  CHECK(mesh.rank() == 2);
  CHECK(mesh.world_size() == 8);
  CHECK(mesh.to_string() == "dp=2,tp=4");
  CHECK(Mesh::one_dim(5).to_string() == "dp=5");
  CHECK(Mesh{}.world_size() == 1);
  CHECK(Mesh{}.coordinate(0).empty());
}

TEST_CASE("the last mesh dim varies fastest, and ranks map both ways") {
  const Mesh mesh = Mesh::parse("pp=2,dp=3,tp=4");
  CHECK(mesh.coordinate(5) == std::vector<std::int64_t>{0, 1, 1});
  for (std::int64_t rank = 0; rank < mesh.world_size(); ++rank)
    CHECK(mesh.rank_of(mesh.coordinate(rank)) == rank);
  CHECK_THROWS_AS(mesh.coordinate(24), Error);
  CHECK_THROWS_AS(mesh.coordinate(-1), Error);
  CHECK_THROWS_AS(mesh.rank_of({0, 3, 0}), Error);
}

TEST_CASE("what is no mesh is refused") {
  for (const char* text :
       {"", "dp", "dp=", "=2", "dp=2,", "dp=x", "dp=2.5", "dp=0", "dp=-1", "dp=2,dp=3",
        "dp=2 ,tp=2x", "a=9223372036854775807,b=2", "dp=99999999999999999999"}) {
    INFO(text);
    check_refused([text] { Mesh::parse(text); });
  }
}

TEST_CASE("placements read and print") {
  for (const char* text : {"replicate", "shard(0)", "shard(12)", "strided(1,4)", "flat"})
    CHECK(Placement::parse(text).to_string() == text);
  const auto list = Placement::parse_list("strided(0,2), shard(0),replicate");
  REQUIRE(list.size() == 3);
  CHECK(list[0] == Placement::strided_shard(0, 2));
  CHECK(list[1] == Placement::shard(0));
  CHECK(list[2] == Placement::replicate());
}

TEST_CASE("what is no placement is refused") {
  for (const char* text : {"", "shard", "shard()", "shard(-1)", "shard(0", "shard(0,1)", "shard(x)",
                           "strided(0)", "strided(0,0)", "partial", "Shard(0)", "shard(64)",
                           "replicate()", "shard(99999999999999999999)"}) {
    INFO(text);
    check_refused([text] { Placement::parse(text); });
  }
  check_refused([] { Placement::parse_list("shard(0),"); });
  check_refused([] { Placement::parse_list("shard(0)),replicate("); });
}

}  // namespace mesh_test

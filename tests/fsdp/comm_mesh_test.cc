// Which ranks a mesh puts into which group.
#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "tests/fsdp/comm_support.h"

namespace comm_mesh_test {

using namespace tessera;
using namespace tessera::fsdp;
using namespace tessera::fsdp::testing;

namespace {

using Ranks = std::vector<int>;

Ranks from(int first, int count, int stride = 1) {
  Ranks ranks(count);
  for (int i = 0; i < count; ++i) ranks[i] = first + i * stride;
  return ranks;
}

}  // namespace

TEST_CASE("sixteen ranks on two nodes form two shard groups and eight pairs of replicas") {
  for (int rank = 0; rank < 16; ++rank) {
    const World world = fake_world(rank, 16);
    const DeviceMesh mesh(world, {2, 8}, {"replicate", "shard"});
    CHECK(mesh.ndim() == 2);
    CHECK(mesh.coordinate(0) == rank / 8);
    CHECK(mesh.coordinate(1) == rank % 8);
    CHECK(mesh.ranks_along(1) == from(rank / 8 * 8, 8));
    CHECK(mesh.ranks_along(0) == Ranks{rank % 8, rank % 8 + 8});
    CHECK(mesh.group(1)->global_ranks() == from(rank / 8 * 8, 8));
    CHECK(mesh.group(1)->rank() == rank % 8);
    CHECK(mesh.group(0)->rank() == rank / 8);
  }
  CHECK(DeviceMesh(fake_world(5, 16), {2, 8}, {"replicate", "shard"}).ranks_along(0) ==
        Ranks{5, 13});
}

TEST_CASE("a mesh of any shape partitions its ranks along every dim") {
  const std::vector<std::vector<std::int64_t>> shapes = {{1},       {7},       {2, 3},
                                                         {3, 1, 4}, {2, 2, 2}, {1, 5}};
  for (const auto& shape : shapes) {
    const auto total = static_cast<int>(
        std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>()));
    std::vector<std::string> names;
    for (std::size_t d = 0; d < shape.size(); ++d) names.push_back("d" + std::to_string(d));
    for (int dim = 0; dim < static_cast<int>(shape.size()); ++dim) {
      std::vector<Ranks> groups;
      std::vector<int> seen(total, 0);
      for (int rank = 0; rank < total; ++rank) {
        const DeviceMesh mesh(fake_world(rank, total), shape, names);
        const Ranks along = mesh.ranks_along(dim);
        REQUIRE(static_cast<std::int64_t>(along.size()) == shape[dim]);
        CHECK(along[mesh.coordinate(dim)] == rank);
        for (const int member : along) {
          const DeviceMesh theirs(fake_world(member, total), shape, names);
          CHECK(theirs.ranks_along(dim) == along);
        }
        ++seen[along[0]];
      }
      for (int rank = 0; rank < total; ++rank) CHECK((seen[rank] == 0 || seen[rank] == shape[dim]));
    }
  }
}

TEST_CASE("the same ranks give the same communicator and the same mesh handle") {
  const World world = fake_world(1, 4);
  const DeviceMesh mesh = world.mesh();
  CHECK(mesh.same(world.mesh()));
  CHECK(mesh.find_dim("shard") == 0);
  CHECK(mesh.find_dim("replicate") == -1);
  CHECK(mesh.group(0) == world.communicator());
  CHECK(world.group({0, 1}) == world.group({0, 1}));
  CHECK(world.group({0, 1}) != world.group({1, 2}));
  CHECK(world.group({0, 1})->name() != world.group({1, 2})->name());
  CHECK(world.communicator()->name() == "world");
  CHECK(world.group({0, 1, 3})->name() == "ranks 0-1,3");
  CHECK(world.group({1})->backend() == "single");
  CHECK(world.group({1})->global_ranks() == Ranks{1});
  CHECK_FALSE(mesh.same(DeviceMesh(world, {4}, {"shard"})));
}

TEST_CASE("a mesh dim becomes a mesh of its own that remembers its parent") {
  const World world = fake_world(6, 8);
  const DeviceMesh mesh(world, {2, 4}, {"dp", "tp"});
  CHECK_FALSE(mesh.has_parent());
  const DeviceMesh tp = mesh.sub(1);
  CHECK(tp.ndim() == 1);
  CHECK(tp.ranks() == Ranks{4, 5, 6, 7});
  CHECK(tp.coordinate(0) == 2);
  CHECK(tp.find_dim("tp") == 0);
  CHECK(tp.group(0) == mesh.group(1));
  CHECK(tp.has_parent());
  CHECK(tp.parent().same(mesh));
  CHECK(tp.parent_dim() == 1);
}

TEST_CASE("a mesh over some of the ranks") {
  const World world = fake_world(5, 8);
  const DeviceMesh mesh(world, {2, 2}, {"a", "b"}, {1, 3, 5, 7});
  CHECK(mesh.ranks_along(0) == Ranks{1, 5});
  CHECK(mesh.ranks_along(1) == Ranks{5, 7});
}

TEST_CASE("meshes that make no sense are refused with the reason") {
  const World world = fake_world(1, 4);
  using Sizes = std::vector<std::int64_t>;
  using Names = std::vector<std::string>;
  const auto refuse = [&](Sizes sizes, Names names, Ranks ranks, const std::string& part) {
    INFO(part);
    try {
      const DeviceMesh mesh(world, sizes, names, ranks);
      FAIL("accepted");
    } catch (const Error& error) {
      CHECK(error.code() == Code::kInvalidArgument);
      INFO(error.what());
      CHECK(std::string(error.what()).find(part) != std::string::npos);
    }
  };
  refuse({3}, {"a"}, {0, 1, 2, 3}, "3 places for 4 ranks");
  refuse({2, 2}, {"a"}, {0, 1, 2, 3}, "2 sizes and 1 names");
  refuse({2, 2}, {"a", "a"}, {0, 1, 2, 3}, "named twice");
  refuse({0, 4}, {"a", "b"}, {0, 1, 2, 3}, "size 0");
  refuse({}, {}, {}, "0 sizes");
  refuse({2}, {"a"}, {1, 1}, "must ascend");
  refuse({2}, {"a"}, {1, 4}, "outside the world of 4");
  refuse({2}, {"a"}, {0, 2}, "not among its ranks");
  CHECK_THROWS_WITH(world.group({0, 2}), Catch::Contains("not in"));
  CHECK_THROWS_WITH(world.group({2, 1}), Catch::Contains("must ascend"));
  CHECK_THROWS_AS(fake_world(4, 4), Error);
}

TEST_CASE("groups of a mesh move data among their members alone") {
  for (const char* backend : {"threads", "gloo"}) {
    WorldOptions options;
    options.backend = backend;
    const auto thrown = thrown_by_ranks(
        6,
        [](World& world) {
          const DeviceMesh mesh(world, {2, 3}, {"replicate", "shard"});
          for (int dim = 0; dim < 2; ++dim) {
            at::Tensor sum = at::full({2}, static_cast<float>(world.rank()));
            mesh.group(dim)->all_reduce(sum, Reduce::kSum, {"u", CommPhase::kForward});
            const Ranks along = mesh.ranks_along(dim);
            require(sum[0].item<float>() ==
                        static_cast<float>(std::accumulate(along.begin(), along.end(), 0)),
                    "sum along dim " + std::to_string(dim));
          }
          world.communicator()->barrier({});
        },
        options);
    for (const auto& error : thrown) CHECK(error == "");
  }
}

}  // namespace comm_mesh_test

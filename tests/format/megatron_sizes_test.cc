// Any size to any other and back is the identity: tensor-parallel 1, 2, 3, 4, 8, pipeline 1, 2, 3,
// 4, and 1 to 16 data-parallel ranks of the distributed optimizer. Layouts written by a script.
#include <catch2/catch.hpp>

#include "tests/format/megatron_fixture.h"

namespace tessera::megatron_sizes_test {
namespace {

using testing::RankFolders;
using testing::ToyOptions;
using Kind = ToyOptions::Optimizer;

/// Dims that 2, 3, 4 and 8 divide.
ToyOptions divisible(Kind kind, bool tied) {
  ToyOptions options;
  options.scale = 6;
  options.vocabulary = 24;
  options.layers = 12;
  options.optimizer = kind;
  options.half = true;
  options.tied = tied;
  return options;
}

std::string mesh_of(std::int64_t tp, std::int64_t pp) {
  return "tp=" + std::to_string(tp) + ",pp=" + std::to_string(pp);
}

/// Starts from files that a script wrote for (tp, pp), not from our own.
void check_identity(ToyOptions options, std::int64_t tp, std::int64_t pp,
                    const std::vector<std::string>& meshes) {
  const auto expected = testing::toy_content(options);
  options.tp = tp;
  options.pp = pp;
  RankFolders toy(options);
  const auto contents = testing::through_meshes(*toy.fs.open_directory("/c"), meshes);
  for (std::size_t i = 0; i < contents.size(); ++i) {
    CAPTURE(i);
    CHECK(contents[i].tensors == expected);
    for (const auto& [name, value] : contents[0].values)
      if (!name.starts_with("rng_state")) CHECK(contents[i].values.at(name) == value);
  }
}

}  // namespace

TEST_CASE("any tensor-parallel size to any other and back is the identity", "[wide]") {
  for (const Kind kind : {Kind::kAdam, Kind::kDistributed})
    for (const std::int64_t a : {1, 2, 3, 4, 8})
      for (const std::int64_t b : {1, 2, 3, 4, 8}) {
        CAPTURE(static_cast<int>(kind), a, b);
        ToyOptions options = divisible(kind, a == b);
        options.layers = 1;
        check_identity(options, a, 1, {mesh_of(b, 1), mesh_of(a, 1)});
      }
}

TEST_CASE("any number of stages to any other and back is the identity", "[wide]") {
  for (const Kind kind : {Kind::kAdam, Kind::kDistributed})
    for (const std::int64_t a : {1, 2, 3, 4})
      for (const std::int64_t b : {1, 2, 3, 4}) {
        CAPTURE(static_cast<int>(kind), a, b);
        check_identity(divisible(kind, true), 2, a, {mesh_of(3, b), mesh_of(2, a)});
      }
}

TEST_CASE("the distributed optimizer's files do not depend on the data-parallel size") {
  ToyOptions options = divisible(Kind::kDistributed, true);
  RankFolders toy(options);
  const Manifest manifest = toy.read();
  std::map<std::string, Bytes> first;
  for (const int dp : {1, 2, 3, 4, 7, 8, 16}) {
    CAPTURE(dp);
    const testing::WrittenCheckpoint written(
        megatron_torch_driver(), manifest, *toy.directory,
        testing::mesh_request("dp=" + std::to_string(dp) + ",tp=2,pp=2"));
    if (first.empty()) first = written.files;
    CHECK(written.files == first);
    const Manifest back = testing::read_all(megatron_torch_driver(), written.place());
    CHECK(testing::content_of(back, *written.directory) == testing::toy_content(options));
  }
}

TEST_CASE("buckets of every data-parallel size decode to the same parameters") {
  // More data-parallel ranks make larger buckets: 40 million elements, or a million for each rank.
  for (const int dp : {1, 2, 3, 4, 7, 8, 16}) {
    ToyOptions options = divisible(Kind::kDistributed, false);
    options.more_args = {{"data_parallel_size", Value::integer(dp)},
                         {"world_size", Value::integer(dp)}};
    RankFolders toy(options);
    CHECK(toy.content() == testing::toy_content(options));
  }
}

}  // namespace tessera::megatron_sizes_test

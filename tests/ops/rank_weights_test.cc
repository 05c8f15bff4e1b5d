// Weights and optimizer state that differ from rank to rank belong to single ranks as a random
// generator does: at another world size they are nobody's.
#include <fmt/format.h>
#include <tessera/base/error.h>

#include <catch2/catch.hpp>

#include "tests/support/broken_checkpoint.h"
#include "tests/support/rank_archive.h"

namespace rank_weights_test {

using namespace tessera;
using namespace tessera::testing;

namespace {

/// What AdamW over a weight and a bias leaves on each of two ranks that trained for themselves. The
/// moments of the bias are the same.
Bytes rank_file(int rank) {
  RankArchive archive;
  const float own = static_cast<float>(rank);
  const Value weight = archive.tensor(Shape{2, 2}, {own, 1, 2, 3});
  const Value bias = archive.tensor(Shape{3}, {own, 5, 6});
  const Value lora = archive.tensor(Shape{2, 3}, {8, 8, 8, 8, 8, 8});
  const auto state = [&](const Shape& shape, std::vector<float> moment) {
    return dict(
        {{"step", archive.tensor(Shape{}, {3})}, {"exp_avg", archive.tensor(shape, moment)}});
  };
  const Value states = Value::dict({{Value::integer(0), state(Shape{2, 2}, {own, 7, 7, 7})},
                                    {Value::integer(1), state(Shape{3}, {9, 9, 9})},
                                    {Value::integer(2), state(Shape{2, 3}, {4, 4, 4, 4, 4, 4})}});
  const Value group =
      dict({{"lr", Value::real(0.5)}, {"params", Value::list({number(0), number(1), number(2)})}});
  return archive.render(
      dict({{"model", dict({{"weight", weight}, {"bias", bias}, {"lora.rank_8", lora}})},
            {"optimizer", dict({{"state", states}, {"param_groups", Value::list({group})}})}}));
}

struct RankWeights {
  MemoryFileSystem fs;
  ConvertReport report;

  RankWeights() {
    fs.make_directories("/source");
    for (int rank = 0; rank < 2; ++rank)
      fs.write_file(fmt::format("/source/rank{}.pt", rank), rank_file(rank));
  }
  OpenedContent reshard(std::int64_t ranks, RankStatePolicy policy, const std::string& from,
                        const std::string& to, const std::string& format = "") {
    ConvertOptions options = convert_options(from, to, ranks, format);
    options.rank_state = policy;
    report = convert(fs, options);
    return content_at(fs, to);
  }
  std::string refusal(const std::string& from, std::int64_t ranks) {
    try {
      reshard(ranks, RankStatePolicy::kDefault, from, "/refused");
    } catch (const Error& error) {
      CHECK(error.code() == Code::kUnsupported);
      CHECK_FALSE(fs.stat("/refused"));
      return said(error.status());
    }
    return "";
  }
};

std::vector<std::string> keys(const std::map<std::string, std::string>& content) {
  std::vector<std::string> out;
  for (const auto& [name, value] : content) out.push_back(name);
  return out;
}

}  // namespace

TEST_CASE("weights that differ from rank to rank do not go to another world size by themselves") {
  RankWeights scene;
  const std::string said = scene.refusal("/source", 3);
  CHECK_THAT(said, Catch::Contains("\"model.weight.rank_0\" and 5 more belong to single ranks") &&
                       Catch::Contains("from 2 to 3") &&
                       Catch::Contains("--rank-state keep, drop or rank0"));
  CHECK(scene.refusal("/source", 1) != "");
  const OpenedContent source = content_at(scene.fs, "/source");
  CHECK(scene.reshard(2, RankStatePolicy::kDefault, "/source", "/same").tensors == source.tensors);
  CHECK(scene.reshard(3, RankStatePolicy::kKeep, "/source", "/kept").tensors == source.tensors);
}

TEST_CASE(
    "another format's copy of ranks' own weights is refused as well, one named rank_8 is not") {
  RankWeights scene;
  scene.reshard(2, RankStatePolicy::kDefault, "/source", "/dcp", "torch-dcp");
  CHECK_THAT(scene.refusal("/dcp", 4), Catch::Contains("and 5 more belong to single ranks"));
  const OpenedContent one = scene.reshard(2, RankStatePolicy::kRank0, "/dcp", "/one");
  CHECK(one.tensors.count("model.weight") == 1);
  CHECK(one.tensors.count("model.lora.rank_8") == 1);
  CHECK(scene.refusal("/one", 4) == "");
}

TEST_CASE("rank0 makes rank 0's weights and optimizer state everybody's, by their own names") {
  RankWeights scene, alone;
  alone.fs.remove_file("/source/rank1.pt");
  alone.fs.rename("/source/rank0.pt", "/alone.pt");
  const OpenedContent expected = content_at(alone.fs, "/alone.pt");
  for (const std::int64_t ranks : {1, 2, 3}) {
    CAPTURE(ranks);
    const std::string to = fmt::format("/out{}", ranks);
    const OpenedContent got = scene.reshard(ranks, RankStatePolicy::kRank0, "/source", to);
    CHECK(got.tensors == expected.tensors);
    CHECK(got.values == expected.values);
    CHECK(scene.report.dropped == std::vector<std::string>{"model.weight.rank_1",
                                                           "model.bias.rank_1",
                                                           "optimizer.state.0.exp_avg.rank_1"});
  }
}

TEST_CASE("dropped weights take their optimizer state and their places in the groups along") {
  RankWeights scene;
  const OpenedContent got = scene.reshard(3, RankStatePolicy::kDrop, "/source", "/out");
  CHECK(keys(got.tensors) == std::vector<std::string>{"model.lora.rank_8",
                                                      "optimizer.state.2.exp_avg",
                                                      "optimizer.state.2.step"});
  CHECK_THAT(got.values.at("optimizer.param_groups.0.params"), Catch::Contains("2"));
  CHECK_THAT(got.values.at("optimizer.param_groups.0.params"),
             !Catch::Contains("0") && !Catch::Contains("1"));
  CHECK(scene.report.dropped.size() == 9);
}

}  // namespace rank_weights_test

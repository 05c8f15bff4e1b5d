// Experts packed in one matrix (GroupedMLP) over tensor- and expert-parallel ranks: real rank files
// of Megatron-core models and their distributed optimizer, against what Megatron's own gather says.
#include <tessera/base/error.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "lib/format/megatron_torch/packed_experts.h"
#include "tests/format/megatron_fixture.h"
#include "tests/support/note_text.h"

namespace tessera::megatron_packed_experts_test {
namespace {

using megatron_torch::packed_matrix;
using megatron_torch::packed_view;
using testing::RankArchive;
using testing::RankFolders;
using testing::SampleCase;

const std::vector<std::string> kCases = {"grouped_tp1_ep2_plain", "grouped_tp2_ep2"};

SampleCase rank_case(const std::string& name) {
  return SampleCase("../tests/format/data/megatron_ranks/" + name, "iter_0000007");
}

/// One stored shape under each of these names.
megatron_torch::ShapeOf shapes(std::map<std::string, Shape> known) {
  return [known](const std::string& name) {
    const auto found = known.find(name);
    return found == known.end() ? std::nullopt : std::optional(found->second);
  };
}

TEST_CASE("packed experts of real rank files are put together as Megatron gathers them") {
  for (const std::string& name : kCases) {
    CAPTURE(name);
    const SampleCase sample = rank_case(name);
    const Manifest manifest = testing::read_all(megatron_torch_driver(), sample.place());
    CHECK(testing::content_of(manifest, *sample.directory) ==
          testing::expected_content(sample.expected));
  }
}

TEST_CASE("copies that CRCs cannot compare are told of") {
  // The distributed optimizer makes all parameters of a rank views of one buffer.
  const Manifest manifest =
      testing::read_all(megatron_torch_driver(), rank_case("grouped_tp2_ep2").place());
  const auto note = std::ranges::find(manifest.notes, "CK098", testing::note_code<Note>);
  REQUIRE(note != manifest.notes.end());
  CHECK(note->message.find("compare the copies byte by byte") != std::string::npos);
}

TEST_CASE("packed experts go to other sizes of both kinds and come back the same") {
  for (const std::string& name : kCases) {
    CAPTURE(name);
    const SampleCase sample = rank_case(name);
    const auto contents = testing::through_meshes(
        *sample.directory, {"tp=1", "tp=2,ep=4", "tp=1,ep=2", "tp=2", "tp=2,ep=2"});
    for (std::size_t i = 1; i < contents.size(); ++i) {
      CAPTURE(i);
      CHECK(contents[i].tensors == contents[0].tensors);
    }
  }
}

TEST_CASE("packed experts are written as Megatron wrote them") {
  const SampleCase sample = rank_case("grouped_tp2_ep2");
  const Manifest manifest = testing::read_all(megatron_torch_driver(), sample.place());
  const testing::WrittenCheckpoint written(megatron_torch_driver(), manifest, *sample.directory,
                                           testing::mesh_request("tp=2,ep=2"));
  int compared = 0;
  for (const std::string folder :
       {"mp_rank_00_000", "mp_rank_00_001", "mp_rank_01_000", "mp_rank_01_001"}) {
    CAPTURE(folder);
    const std::string path = folder + "/model_optim_rng.pt";
    const auto original = sample.directory->open(path);
    Bytes bytes(original->size_bytes());
    original->read_at(0, bytes);
    CHECK(testing::tensors_in(written.files.at(path)) == testing::tensors_in(bytes));
    ++compared;
  }
  CHECK(compared == 4);
}

TEST_CASE("packed experts go through a torch_dist folder and come back") {
  const SampleCase sample = rank_case("grouped_tp2_ep2");
  const Manifest manifest = testing::read_all(megatron_torch_driver(), sample.place());
  const FormatDriver& dist = *find_format("megatron-dist");
  const testing::WrittenCheckpoint there(dist, manifest, *sample.directory,
                                         testing::mesh_request("tp=2,ep=2"));
  const Manifest middle = testing::read_all(dist, there.place());
  const testing::WrittenCheckpoint back(megatron_torch_driver(), middle, *there.directory,
                                        testing::mesh_request("tp=1,ep=4"));
  const Manifest after = testing::read_all(megatron_torch_driver(), back.place());
  CHECK(testing::content_of(after, *back.directory) == testing::expected_content(sample.expected));
}

TEST_CASE("sizes that do not divide packed experts are refused with the numbers") {
  const SampleCase sample = rank_case("grouped_tp2_ep2");
  const Manifest manifest = testing::read_all(megatron_torch_driver(), sample.place());
  const auto failure = [&](const std::string& mesh) {
    std::string message;
    CHECK(test::code_of(
              [&] { megatron_torch_driver().output_plan(manifest, testing::mesh_request(mesh)); },
              &message) == Code::kInvalidArgument);
    return message;
  };
  CHECK_THAT(failure("tp=1,ep=3"), Catch::Contains("4 experts cannot be shared evenly by 3"));
  CHECK_THAT(failure("tp=4"), Catch::Contains("4 tensor-parallel ranks"));
}

TEST_CASE("the shape of packed experts follows from the router and the second matrix") {
  const std::string first = "decoder.layers.0.mlp.experts.weight1";
  const std::string second = "decoder.layers.0.mlp.experts.weight2";
  const std::string router = "decoder.layers.0.mlp.router.weight";
  const auto gated = shapes({{first, {8, 24}}, {second, {12, 8}}, {router, {4, 8}}});
  CHECK(packed_view(first, gated, {}, 2) == Shape{2, 8, 2, 6});
  CHECK(packed_view(second, gated, {}, 2) == Shape{2, 6, 8});
  const auto plain = shapes({{first, {8, 12}}, {second, {12, 8}}, {router, {4, 8}}});
  CHECK(packed_view(first, plain, {}, 2) == Shape{2, 8, 6});
  CHECK(packed_view(first, plain, {}, 1) == Shape{4, 8, 3});
  CHECK_FALSE(packed_view(first, shapes({{first, {8, 24}}, {second, {12, 8}}}), {}, 2));
  CHECK(packed_matrix(first, {2, 8, 2, 6}) == Shape{8, 24});
  CHECK(packed_matrix(second, {2, 6, 8}) == Shape{12, 8});
  const std::vector<std::map<std::string, Shape>> wrong = {
      {{first, {8, 25}}, {second, {12, 8}}, {router, {4, 8}}},
      {{first, {8, 24}}, {second, {12, 9}}, {router, {4, 8}}},
      {{first, {8, 36}}, {second, {12, 8}}, {router, {4, 8}}},
      {{first, {8, 24}}, {second, {12, 8}}, {router, {5, 8}}}};
  for (const auto& known : wrong)
    CHECK(test::code_of([&] { packed_view(first, shapes(known), {}, 2); }) == Code::kCorrupt);
  // Two that fits as well: who says it decides nothing where the other contradicts.
  const megatron_torch::Args two(testing::argument_namespace({{"num_experts", Value::integer(2)}}));
  CHECK(packed_view(first, shapes({{first, {8, 24}}, {second, {12, 8}}}), two, 2) ==
        Shape{1, 8, 2, 12});
  std::string message;
  CHECK(test::code_of([&] { packed_view(first, gated, two, 2); }, &message) == Code::kCorrupt);
  CHECK_THAT(message, Catch::Contains("4 rows, but args say 2 experts"));
}

TEST_CASE("a rank with other packed experts than its peers is named") {
  RankFolders folders;
  const auto args =
      testing::argument_namespace({{"tensor_model_parallel_size", Value::integer(1)},
                                   {"pipeline_model_parallel_size", Value::integer(1)},
                                   {"expert_model_parallel_size", Value::integer(2)}});
  for (const std::int64_t e : {0, 1}) {
    RankArchive archive;
    const std::int64_t ffn = 2 * (3 + e);
    folders.write_rank(
        "mp_rank_00_00" + std::to_string(e), archive,
        {{"decoder.layers.0.mlp.router.weight",
          archive.tensor(Shape{4, 2}, std::vector<float>(8, 1))},
         {"decoder.layers.0.mlp.experts.weight2",
          archive.tensor(Shape{ffn, 2}, std::vector<float>(static_cast<std::size_t>(2 * ffn)))}},
        {{"args", args}});
  }
  std::string message;
  CHECK(folders.failure(message) == Code::kCorrupt);
  CHECK_THAT(message, Catch::Contains("mp_rank_00_001") && Catch::Contains("experts.weight2"));
}

}  // namespace
}  // namespace tessera::megatron_packed_experts_test

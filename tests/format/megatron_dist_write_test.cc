// torch_dist folders as we write them: read back alike at any mesh, cut where Megatron cuts.
#include <tessera/format/megatron_dist.h>
#include <tessera/format/torch_dcp.h>
#include <tessera/state/roles.h>

#include <catch2/catch.hpp>
#include <set>

#include "tests/support/archive_gather.h"
#include "tests/support/sample_case.h"
#include "tests/support/written_checkpoint.h"

namespace tessera::megatron_dist_write_test {
namespace {

using testing::WrittenCheckpoint;

TargetRequest request_of(const std::string& mesh) {
  TargetRequest request;
  request.mesh = Mesh::parse(mesh);
  return request;
}

std::vector<std::string> chunks_of(const Manifest& manifest, const std::string& name) {
  std::vector<std::string> out;
  for (const std::string& chunk : testing::chunk_set(manifest))
    if (chunk.starts_with(name + " ")) out.push_back(chunk.substr(name.size() + 1));
  return out;
}

/// Names by today's rule of flattening, whatever the format kept as one value.
std::set<std::string> canonical(const Manifest& manifest) {
  ValueBudget budget(1 << 20);
  std::set<std::string> names;
  for (const StateEntry& entry : flatten(unflatten(manifest.state), budget).entries)
    names.insert(entry.name);
  return names;
}

}  // namespace

TEST_CASE("torch_dist samples written at other meshes read back alike") {
  for (const std::string name : {"megatron/torch_dist_tp2_dp2", "megatron/torch_dist_tp1_dp1"}) {
    const testing::SampleCase sample(name, "checkpoint/iter_0000100");
    const Manifest source = testing::read_all(megatron_dist_driver(), sample.place());
    const auto values = testing::values_of(source, *sample.directory);
    for (const std::string mesh : {"tp=1", "tp=2", "tp=3,dp=2", "pp=3,tp=2", "tp=5"}) {
      CAPTURE(name, mesh);
      const WrittenCheckpoint written(megatron_dist_driver(), source, *sample.directory,
                                      request_of(mesh));
      written.plan.check(source);
      const Manifest back = testing::read_all(megatron_dist_driver(), written.place());
      CHECK(testing::content_of(back, *written.directory) ==
            testing::expected_content(sample.expected));
      CHECK(testing::values_of(back, *written.directory) == values);
    }
  }
}

TEST_CASE("tp cuts rows and columns by Megatron's names and pp the stack of layers") {
  const testing::SampleCase sample("megatron/torch_dist_tp1_dp1", "checkpoint/iter_0000100");
  Manifest source = testing::read_all(megatron_dist_driver(), sample.place());
  assign_kinds(source, find_roles(source.state));  // parameters are cut, also where W is 1
  const WrittenCheckpoint written(megatron_dist_driver(), source, *sample.directory,
                                  request_of("pp=3,tp=2"));
  const Manifest back = megatron_dist_driver().manifest(written.place(), {});
  CHECK(chunks_of(back, "embedding.word_embeddings.weight") ==
        std::vector<std::string>{"[0,0] [6,6]", "[6,0] [6,6]"});
  CHECK(chunks_of(back, "decoder.layers.mlp.linear_fc1.weight") ==
        std::vector<std::string>{"[0,0,0] [1,6,6]", "[0,6,0] [1,6,6]", "[1,0,0] [1,6,6]",
                                 "[1,6,0] [1,6,6]", "[2,0,0] [1,6,6]", "[2,6,0] [1,6,6]"});
  CHECK(chunks_of(back, "optimizer.state.exp_avg.decoder.layers.mlp.linear_fc2.weight").size() ==
        6);
  CHECK(chunks_of(back, "decoder.final_layernorm.weight").size() == 1);
}

TEST_CASE("metadata.json comes last and names the backend") {
  const testing::SampleCase sample("megatron/torch_dist_tp1_dp1", "checkpoint/iter_0000100");
  const Manifest source = testing::read_all(megatron_dist_driver(), sample.place());
  const WrittenCheckpoint written(megatron_dist_driver(), source, *sample.directory,
                                  request_of("tp=2"));
  CHECK(written.plan.files.back().path == "metadata.json");
  CHECK(written.files.contains("common.pt"));
  CHECK(written.files.contains(".metadata"));
  CHECK(written.files.contains("__1_0.distcp"));
}

TEST_CASE("checkpoints of other formats go there and come back") {
  for (const std::string name : {"dcp/fsdp2_w4", "dcp/objects_w2"}) {
    CAPTURE(name);
    const testing::SampleCase sample(name);
    const Manifest source = testing::read_all(torch_dcp_driver(), sample.place());
    const WrittenCheckpoint there(megatron_dist_driver(), source, *sample.directory);
    const Manifest middle = testing::read_all(megatron_dist_driver(), there.place());
    CHECK(testing::content_of(middle, *there.directory) ==
          testing::content_of(source, *sample.directory));
    const WrittenCheckpoint back(torch_dcp_driver(), middle, *there.directory);
    const Manifest again = testing::read_all(torch_dcp_driver(), back.place());
    CHECK(testing::content_of(again, *back.directory) ==
          testing::content_of(source, *sample.directory));
    CHECK(canonical(again) == canonical(source));
  }
}

TEST_CASE("a mesh is asked for where a world size is given for torch_dist") {
  const testing::SampleCase sample("megatron/torch_dist_tp1_dp1", "checkpoint/iter_0000100");
  const Manifest source = testing::read_all(megatron_dist_driver(), sample.place());
  TargetRequest request;
  request.world_size = 2;
  std::string message;
  CHECK(test::code_of([&] { megatron_dist_driver().output_plan(source, request); }, &message) ==
        Code::kInvalidArgument);
  CHECK_THAT(message, Catch::Contains("--world-size does not say"));
}

}  // namespace tessera::megatron_dist_write_test

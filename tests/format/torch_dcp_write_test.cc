// What torch-dcp output plans hold: the chunks PyTorch itself records, the same content, exact
// bytes.
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/format/torch_dcp.h>
#include <tessera/storage/memory_file_system.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "tests/support/execute_plan.h"
#include "tests/support/sample_case.h"

namespace tessera::torch_dcp_write_test {
namespace {

using testing::SampleCase;

/// A source, located, and what was planned and written from it.
struct OpenSource {
  SampleCase sample;
  Manifest manifest;

  explicit OpenSource(const std::string& name) : sample(name) {
    manifest = torch_dcp_driver().manifest(sample.place(), {});
    torch_dcp_driver().locate(sample.place(), manifest, testing::all_tensors(manifest), {});
    if (manifest.world_size == 1) guess_kinds();
  }

  OutputPlan plan(const TargetRequest& request) const {
    return torch_dcp_driver().output_plan(manifest, request);
  }

  /// Opening sets kinds; at world size 1 they decide what is sharded.
  void guess_kinds() {
    for (StoredTensor& tensor : manifest.tensors) {
      if (tensor.name.starts_with("optim.")) tensor.kind = TensorKind::kOptim;
      if (tensor.name.ends_with("weight") || tensor.name.ends_with("bias"))
        tensor.kind = TensorKind::kParam;
    }
  }
};

/// The written checkpoint, read back.
struct Written {
  MemoryFileSystem fs;
  std::unique_ptr<Directory> directory;
  Manifest manifest;

  Written(const OpenSource& source, const TargetRequest& request) {
    const OutputPlan plan = source.plan(request);
    for (const auto& [path, bytes] :
         testing::execute_plan(source.manifest, *source.sample.directory, plan))
      fs.write_file("/out/" + path, bytes);
    directory = fs.open_directory("/out");
    const Place place{directory.get(), "", "out"};
    manifest = torch_dcp_driver().manifest(place, {});
    torch_dcp_driver().locate(place, manifest, testing::all_tensors(manifest), {});
  }
};

TargetRequest to_world_size(std::int64_t size) {
  TargetRequest request;
  request.world_size = size;
  return request;
}

TargetRequest to_mesh(const std::string& mesh) {
  TargetRequest request;
  request.mesh = Mesh::parse(mesh);
  return request;
}

std::vector<std::string> golden_chunks(const std::string& name) {
  const SampleCase sample(name);
  return testing::chunk_set(torch_dcp_driver().manifest(sample.place(), {}));
}

std::string item_owner(const Manifest& manifest, const std::string& name, std::size_t chunk) {
  const StoredTensor* tensor = manifest.find(name);
  REQUIRE(tensor);
  return manifest.files[manifest.source(*tensor, chunk).file].path;
}

}  // namespace

TEST_CASE("resharding gives the chunks PyTorch records at that world size") {
  const std::vector<std::pair<std::string, std::int64_t>> goldens = {
      {"dcp/fsdp2_w1", 1}, {"dcp/fsdp2_w2", 2}, {"dcp/fsdp2_w3", 3}, {"dcp/fsdp2_w4", 4}};
  for (const std::string from : {"dcp/fsdp2_w1", "dcp/fsdp2_w2", "dcp/fsdp2_w4", "dcp/hsdp_2x2",
                                 "dcp/fsdp2_tp_2x2", "dcp/fsdp2_w2_zstd"}) {
    const OpenSource source(from);
    for (const auto& [golden, size] : goldens) {
      CAPTURE(from, golden);
      CHECK(testing::chunk_set(Written(source, to_world_size(size)).manifest) ==
            golden_chunks(golden));
    }
  }
}

TEST_CASE("resharding to a mesh gives the chunks PyTorch records there") {
  const OpenSource source("dcp/fsdp2_w4");
  CHECK(testing::chunk_set(Written(source, to_mesh("replicate=2,shard=2")).manifest) ==
        golden_chunks("dcp/hsdp_2x2"));

  TargetRequest tp = to_mesh("dp=2,tp=2");
  const auto placements = [](const std::string& text) { return Placement::parse_list(text); };
  tp.placements = {{"*.up.weight*", placements("strided(0,2),shard(0)")},
                   {"*.up.bias*", placements("strided(0,2),shard(0)")},
                   {"*.down.weight*", placements("shard(0),shard(1)")}};
  CHECK(testing::chunk_set(Written(source, tp).manifest) == golden_chunks("dcp/fsdp2_tp_2x2"));
}

TEST_CASE("FSDP1 checkpoints reshard to FSDP1's chunks") {
  const OpenSource source("dcp/fsdp1_sharded_orig_w2");
  CHECK(testing::chunk_set(Written(source, to_world_size(4)).manifest) ==
        golden_chunks("dcp/fsdp1_mesh_flat_w4"));
  // ShardedTensors have no zero-size shards; all others agree.
  for (const auto& [golden, size] : std::vector<std::pair<std::string, std::int64_t>>{
           {"dcp/fsdp1_sharded_flat_w3", 3}, {"dcp/fsdp1_sharded_orig_w4", 4}}) {
    CAPTURE(golden);
    CHECK(testing::chunk_set(Written(source, to_world_size(size)).manifest, false) ==
          golden_chunks(golden));
  }
}

TEST_CASE("every chunk lands on the rank PyTorch chooses") {
  // One rank's metadata keeps the state's own order, on which the choice depends.
  const OpenSource source("dcp/fsdp2_w1");
  for (const std::int64_t size : {2, 3, 4}) {
    const Written written(source, to_world_size(size));
    const SampleCase golden("dcp/fsdp2_w" + std::to_string(size));
    const Manifest manifest = torch_dcp_driver().manifest(golden.place(), {});
    for (const StoredTensor& tensor : manifest.tensors) {
      CAPTURE(size, tensor.name);
      for (std::uint32_t i = 0; i < tensor.chunk_count; ++i) {
        CHECK(written.manifest.chunk(*written.manifest.find(tensor.name), i) ==
              manifest.chunk(tensor, i));
        CHECK(item_owner(written.manifest, tensor.name, i) == item_owner(manifest, tensor.name, i));
      }
    }
  }
}

TEST_CASE("content is unchanged at every world size") {
  for (const std::string name :
       {"dcp/fsdp2_w4", "dcp/objects_w2", "dcp/objects_2x2", "dcp/fsdp1_local_w3",
        "dcp/fsdp2_w2_rank_local", "dcp-old/torch-1.13.1_shardedtensor_w2",
        "dcp-old/torch-2.0.1_shardedtensor_w2", "dcp-old/torch-2.6.0_fsdp1_dtensor_w2",
        "dcp/fsdp2_w2_zstd"}) {
    const OpenSource source(name);
    const auto tensors = testing::expected_content(source.sample.expected);
    const auto values = testing::values_of(source.manifest, *source.sample.directory);
    for (const std::int64_t size : {1, 2, 3, 5, 16}) {
      CAPTURE(name, size);
      const Written written(source, to_world_size(size));
      CHECK(testing::content_of(written.manifest, *written.directory) == tensors);
      CHECK(testing::values_of(written.manifest, *written.directory) == values);
      CHECK(written.manifest.world_size == size);
    }
  }
}

TEST_CASE("names, order and paths of entries survive") {
  const OpenSource source("dcp/objects_w2");
  const Written written(source, to_world_size(3));
  REQUIRE(written.manifest.state.entries.size() == source.manifest.state.entries.size());
  for (std::size_t i = 0; i < source.manifest.state.entries.size(); ++i) {
    const StateEntry& a = source.manifest.state.entries[i];
    const StateEntry& b = written.manifest.state.entries[i];
    CHECK(a.name == b.name);
    CHECK(a.path == b.path);
  }
}

TEST_CASE("resharding there and back gives the same bytes") {
  const OpenSource source("dcp/fsdp2_w4");
  const OutputPlan two = source.plan(to_world_size(2));
  const auto direct = testing::execute_plan(source.manifest, *source.sample.directory, two);
  const Written five(source, to_world_size(5));
  const OutputPlan again = torch_dcp_driver().output_plan(five.manifest, to_world_size(2));
  CHECK(testing::execute_plan(five.manifest, *five.directory, again) == direct);
}

TEST_CASE("every rank has a file, .metadata comes last") {
  const OpenSource source("dcp/fsdp2_w2");
  const OutputPlan plan = source.plan(to_world_size(400));
  REQUIRE(plan.files.size() == 401);
  CHECK(plan.files[0].path == "__0_0.distcp");
  CHECK(plan.files[399].path == "__399_0.distcp");
  CHECK(plan.files[400].path == ".metadata");
  CHECK(std::ranges::any_of(plan.files, [](const OutputFile& f) { return f.size_bytes == 0; }));
}

TEST_CASE("placement lists must fit the mesh and the tensor") {
  const OpenSource source("dcp/fsdp2_w2");
  const auto code_of = [&](const TargetRequest& request) {
    try {
      source.plan(request);
    } catch (const Error& error) {
      return error.code();
    }
    return Code::kOk;
  };
  TargetRequest request = to_mesh("dp=2,tp=2");
  request.placements = {{"*", Placement::parse_list("shard(0)")}};
  CHECK(code_of(request) == Code::kInvalidArgument);
  request.placements = {{"*bias*", Placement::parse_list("replicate,shard(1)")}};
  CHECK(code_of(request) == Code::kInvalidArgument);
  request.placements = {{"*", Placement::parse_list("flat,replicate")}};
  CHECK(code_of(request) == Code::kUnsupported);
  request = to_mesh("dp=2");
  request.world_size = 3;
  CHECK(code_of(request) == Code::kInvalidArgument);
  CHECK(code_of(to_world_size(0)) == Code::kInvalidArgument);
}

TEST_CASE("replicate globs and value policies are obeyed") {
  const OpenSource source("dcp/objects_w2");
  TargetRequest request = to_world_size(3);
  request.replicate = {"dtensors.rows"};
  request.values = KeepPolicy::kDrop;
  const Written written(source, request);
  CHECK(written.manifest.find("dtensors.rows")->chunk_count == 1);
  CHECK(written.manifest.find("dtensors.bf16")->chunk_count == 3);
  CHECK(testing::values_of(written.manifest, *written.directory).empty());
  request.values = KeepPolicy::kError;
  CHECK_THROWS_AS(source.plan(request), Error);
}

}  // namespace tessera::torch_dcp_write_test

// The failures people meet with shards of tensors: flat ones taken for weights, empty ones, copies
// that are no copies, ties that are none.
#include <tessera/format/torch_dcp.h>

#include "tests/support/broken_checkpoint.h"
#include "tests/support/dcp_builder.h"

namespace failure_catalogue_shards_test {

using namespace tessera;
using namespace tessera::testing;
using Catch::Contains;

namespace {

/// One DCP item after the other in __<rank>_0.distcp files.
struct Written {
  MemoryFileSystem fs;
  BuiltMetadata metadata;
  std::map<std::string, Bytes> files;

  void add(const std::string& name, Numbers origin, const Shape& shape, float first, int rank) {
    const std::string file = fmt::format("__{}_0.distcp", rank);
    const Bytes item = tensor_item(shape, first);
    metadata.items.push_back({name,
                              std::move(origin),
                              file,
                              static_cast<std::int64_t>(files[file].size()),
                              static_cast<std::int64_t>(item.size()),
                              {}});
    files[file].insert(files[file].end(), item.begin(), item.end());
  }
  std::string save() {
    for (const auto& [name, bytes] : files) fs.write_file("/ck/" + name, bytes);
    fs.write_file("/ck/.metadata", build_metadata(metadata));
    return "/ck";
  }
  Status convert_to(const std::string& format, std::optional<std::int64_t> ranks = std::nullopt) {
    try {
      report = convert(fs, convert_options(save(), "/out", ranks, format));
    } catch (const Error& error) {
      return error.status();
    }
    return {};
  }
  ConvertReport report;
};

}  // namespace

TEST_CASE("failure 20: a flat parameter is not exported in place of the weights it holds") {
  BrokenSample flat("dcp/fsdp1_local_w2");
  const Status status = flat.convert_to("hf");
  CHECK(status.code == Code::kUnsupported);
  CHECK_THAT(said(status), Contains("_flat_param\"") && Contains("saved with W=2") &&
                               Contains("save a full or sharded state dict"));
}

TEST_CASE("failure 1: flattened files without their metadata are said to be that") {
  Written flat;  // what FairScale's and FSDP's local files look like when nothing describes them
  flat.metadata.tensors = {{"weights.flat_param_0.rank_0", "float32", {6}, {{{0}, {6}}}}};
  flat.add("weights.flat_param_0.rank_0", {0}, Shape{6}, 0, 0);
  const Status status = flat.convert_to("hf");
  CHECK(status.code == Code::kUnsupported);
  CHECK_THAT(said(status), Contains("it was flattened, and the names and shapes of its weights are "
                                    "not in the checkpoint") &&
                               Contains("--flat-layout FILE"));
}

TEST_CASE("failure 17: more ranks than rows leave empty shards, which are read again") {
  BrokenSample sample("dcp/fsdp2_w4");
  const OpenedContent before = content_at(sample.fs, sample.path);
  REQUIRE(sample.convert_to("torch-dcp", 16).ok());
  OpenedCheckpoint wide = open_checkpoint(sample.fs, "/result");
  std::size_t empty = 0;
  for (const StoredTensor& tensor : wide.manifest.tensors)
    for (std::uint32_t c = 0; c < tensor.chunk_count; ++c)
      empty += wide.manifest.chunk(tensor, c).numel() == 0;
  CHECK(empty > 0);
  CHECK(content_at(sample.fs, "/result").tensors == before.tensors);
}

TEST_CASE("failure 19: copies of a buffer stay one buffer, and a scalar stays a scalar") {
  Written same;
  same.metadata.tensors = {{"model.running_mean", "float32", {3}, {{{0}, {3}}}},
                           {"model.count", "float32", {}, {{{}, {}}}}};
  same.add("model.running_mean", {0}, Shape{3}, 5, 0);
  same.add("model.count", {}, Shape{}, 1, 1);
  REQUIRE(same.convert_to("torch-dcp", 8).ok());
  OpenedCheckpoint opened = open_checkpoint(same.fs, "/out");
  CHECK(opened.manifest.find("model.count")->spec.shape == Shape{});
  CHECK(opened.manifest.find("model.running_mean")->spec.shape == Shape{3});
  CHECK(opened.manifest.find("model.count")->chunk_count == 1);
}

TEST_CASE("failure 26: weights that are tied by name but differ in their bytes are both kept") {
  Written diverged;
  diverged.metadata.tensors = {{"model.embed.weight", "float32", {4, 3}, {{{0, 0}, {4, 3}}}},
                               {"model.lm_head.weight", "float32", {4, 3}, {{{0, 0}, {4, 3}}}}};
  diverged.add("model.embed.weight", {0, 0}, {4, 3}, 0, 0);
  diverged.add("model.lm_head.weight", {0, 0}, {4, 3}, 1, 0);
  REQUIRE(diverged.convert_to("hf").ok());
  CHECK(content_at(diverged.fs, "/out").tensors.size() == 2);
  Written tied;
  tied.metadata = diverged.metadata;
  tied.metadata.items.clear();
  tied.add("model.embed.weight", {0, 0}, {4, 3}, 0, 0);
  tied.add("model.lm_head.weight", {0, 0}, {4, 3}, 0, 0);
  REQUIRE(tied.convert_to("hf").ok());
  CHECK(content_at(tied.fs, "/out").tensors.size() == 1);
  CHECK(tied.report.dropped.size() == 1);
}

TEST_CASE("failures 2 and 3: what no rank holds is lost by name and by number") {
  BrokenSample zero("deepspeed/zero2_w4");
  zero.remove("global_step2/zero_pp_rank_2_mp_rank_00_optim_states.pt");
  const std::string findings = zero.verify();
  CHECK_THAT(findings, Contains("CK010 error [zero_pp_rank_2_mp_rank_00_optim_states.pt]") &&
                           Contains("missing: rank 2"));
  CHECK_THAT(findings, Contains("CK024 error") && Contains("lost: ") && Contains("elements"));
  CHECK_THAT(said(zero.convert_to("torch-dcp")), Contains("missing: rank 2"));
}

TEST_CASE("failure 1: flattened shards without one rank's file are told with names and elements") {
  BrokenSample fairscale("fairscale/nested_flat_w3");
  fairscale.remove("rank_1.pt");
  const std::string findings = fairscale.verify();
  CHECK_THAT(findings, Contains("CK010 error [rank_1.pt]"));
  CHECK_THAT(findings, Contains("lost: ") && Contains("elements of \"embed.weight\""));
  CHECK_THAT(said(fairscale.convert_to("torch-dcp")), Contains("rank_1.pt"));
}

}  // namespace failure_catalogue_shards_test

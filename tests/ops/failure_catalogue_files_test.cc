// The failures people meet with files: missing, half-written, short, misnamed. What is wrong, which
// files and ranks, which tensors and rows, and which command helps. docs/failures.md has the list.
#include <tessera/format/safetensors.h>

#include "tests/support/broken_checkpoint.h"

namespace failure_catalogue_files_test {

using namespace tessera;
using namespace tessera::testing;
using Catch::Contains;

TEST_CASE("failure 24: a save that was interrupted is said to be one") {
  BrokenSample dcp("dcp/fsdp2_w4");
  dcp.remove(".metadata");
  const Status status = dcp.convert_to("torch-save");
  CHECK(status.code == Code::kCorrupt);
  CHECK_THAT(said(status),
             Contains("no .metadata (interrupted save)") && Contains("use an earlier checkpoint"));
}

TEST_CASE("failure 18: a missing rank file is named with the tensors and rows it took along") {
  BrokenSample dcp("dcp/fsdp2_w4");
  dcp.remove("__2_0.distcp");
  const std::string findings = dcp.verify();
  CHECK_THAT(findings, Contains("CK010 error [__2_0.distcp]") && Contains("is missing"));
  CHECK_THAT(findings, Contains("CK024 error [__2_0.distcp] model.embed.weight: lost: ") &&
                           Contains("of 66 elements, from [6:9,0:6] on"));
  CHECK_THAT(findings, Contains("optim.state.embed.weight.exp_avg: lost: "));
  const Status status = dcp.convert_to("torch-save");
  CHECK(status.code == Code::kCorrupt);
  CHECK_THAT(said(status),
             Contains("__2_0.distcp") && Contains("ckpt-inspect verify") && Contains("--salvage"));
}

TEST_CASE("failure 25: a shard that is too short is found by its size") {
  BrokenSample dcp("dcp/fsdp2_w4");
  dcp.cut("__1_0.distcp", 1);
  CHECK_THAT(dcp.verify(),
             Contains("CK011 error [__1_0.distcp]") && Contains("past the file's end"));
  CHECK(dcp.convert_to("safetensors").code == Code::kCorrupt);

  BrokenSample shards("safetensors/hf_sharded");
  std::string last;
  for (const auto& [name, content] : shards.fs.contents("/source"))
    if (name.ends_with(".safetensors")) last = name;
  shards.cut(last, 4);
  const std::string findings = shards.verify();
  CHECK_THAT(findings, Contains("[" + last + "]") && Contains("error"));
  const Status status = shards.convert_to("torch-dcp");
  CHECK(status.code == Code::kCorrupt);
  CHECK_THAT(said(status), Contains(last));
}

TEST_CASE("failure 25: an index that names what its shard lacks is found without reading data") {
  BrokenSample index("safetensors/hf_sharded");
  std::string text = index.text("model.safetensors.index.json");
  const std::size_t at = text.find("\"weight_map\": {");
  REQUIRE(at != std::string::npos);
  const std::size_t quote = text.find(".safetensors\"", at);
  const std::size_t from = text.rfind('"', quote - 1);
  const std::string shard = text.substr(from + 1, quote + 12 - from - 1);
  text.insert(at + 15, "\"ghost.weight\": \"" + shard + "\", ");
  index.set_text("model.safetensors.index.json", text);
  CHECK_THAT(index.verify(),
             Contains("CK030 error [" + shard + "] ghost.weight:") && Contains("does not hold it"));
  CHECK_THAT(said(index.convert_to("torch-dcp")), Contains("ghost.weight") && Contains(shard));
}

TEST_CASE("failure 25: a shard that is absent is named with its tensors") {
  BrokenSample shards("safetensors/hf_sharded");
  std::string first;
  for (const auto& [name, content] : shards.fs.contents("/source"))
    if (first.empty() && name.ends_with(".safetensors")) first = name;
  shards.remove(first);
  const std::string findings = shards.verify();
  CHECK_THAT(findings, Contains("CK010 error [" + first + "]"));
  CHECK_THAT(findings,
             Contains("CK024 error [" + first + "]") && Contains("lost: its shard is missing"));
  CHECK_THAT(said(shards.convert_to("torch-dcp")), Contains(first) && Contains("--salvage"));
}

TEST_CASE("failure 22: shards are found by the index, whatever their names look like") {
  BrokenSample shards("safetensors/hf_sharded");
  std::string text = shards.text("model.safetensors.index.json");
  const OpenedContent before = content_at(shards.fs, shards.path);
  int number = 0;
  for (const auto& [name, content] : shards.fs.contents("/source")) {
    if (!name.ends_with(".safetensors")) continue;
    const std::string odd = fmt::format("model.safetensors-{:05}-of-00009.safetensors", ++number);
    shards.fs.rename("/source/" + name, "/source/" + odd);
    for (std::size_t at = 0; (at = text.find("\"" + name + "\"", at)) != std::string::npos;)
      text.replace(at + 1, name.size(), odd);
  }
  REQUIRE(number > 1);
  shards.set_text("model.safetensors.index.json", text);
  const OpenedContent after = content_at(shards.fs, shards.path);
  CHECK(after.tensors == before.tensors);
  CHECK(shards.verify().find("error") == std::string::npos);
}

TEST_CASE("failure 21: every stage's keys are in the result, or nothing is written") {
  BrokenSample shards("safetensors/hf_sharded");
  const OpenedContent source = content_at(shards.fs, shards.path);
  REQUIRE(shards
              .convert_to("safetensors", std::nullopt,
                          [](ConvertOptions& o) {
                            o.own.set(kMaxShardSizeFlag, 400);
                            o.verify = true;
                          })
              .ok());
  CHECK(shards.report.verified);
  CHECK(content_at(shards.fs, "/result").tensors == source.tensors);
}

TEST_CASE("failure 23: a run that stops in the middle leaves nothing that looks whole") {
  BrokenSample dcp("dcp/fsdp2_w4");
  static CancelToken cancel;
  cancel.cancel();
  const Status status = dcp.convert_to("torch-save", std::nullopt, [](ConvertOptions& o) {
    o.cancel = &cancel;
    o.keep = false;
  });
  CHECK(status.code == Code::kCancelled);
  CHECK_FALSE(dcp.fs.stat("/result"));
}

TEST_CASE("failure 30: no source, no success") {
  MemoryFileSystem fs;
  fs.make_directories("/runs/step_100");
  const auto failure = [&](const std::string& source) {
    try {
      convert(fs, convert_options(source, "/runs/out", std::nullopt, "torch-dcp"));
    } catch (const Error& error) {
      return error.status();
    }
    return Status{};
  };
  CHECK(failure("/runs/step_10").code == Code::kNotFound);
  CHECK_THAT(said(failure("/runs/step_10")), Contains("does not exist") && Contains("step_100"));
  CHECK(failure("/runs/step_100").code != Code::kOk);
  CHECK_FALSE(fs.stat("/runs/out"));
}

TEST_CASE("failure 29: what a checkpoint holds is read without its ranks and without its data") {
  BrokenSample dcp("dcp/fsdp2_w4");
  OpenedCheckpoint opened = open_checkpoint(dcp.fs, dcp.path);
  CHECK(opened.manifest.world_size == 4);
  CHECK(opened.manifest.find("model.embed.weight") != nullptr);
}

}  // namespace failure_catalogue_files_test

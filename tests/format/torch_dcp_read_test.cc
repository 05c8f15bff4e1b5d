// Every torch-dcp sample reads exactly as PyTorch's own loader read it.
#include <tessera/format/torch_dcp.h>

#include <catch2/catch.hpp>

#include "tests/support/note_text.h"
#include "tests/support/sample_case.h"

namespace tessera::torch_dcp_read_test {
namespace {

using testing::SampleCase;

std::vector<std::string> dcp_samples() {
  std::vector<std::string> names = testing::sample_names("dcp");
  for (std::string& name : testing::sample_names("dcp-old")) names.push_back(std::move(name));
  for (std::string& name : testing::sample_names("olmo-core")) names.push_back(std::move(name));
  return names;
}

std::string folder_of(const std::string& name) {
  return name.starts_with("olmo-core") ? "checkpoint/model_and_optim" : "checkpoint";
}

Manifest read_located(const SampleCase& sample, int threads = 1) {
  ReadOptions options;
  options.threads = threads;
  Manifest manifest = torch_dcp_driver().manifest(sample.place(), options);
  torch_dcp_driver().locate(sample.place(), manifest, testing::all_tensors(manifest), options);
  return manifest;
}

std::string dialect_of(const std::string& name, const std::string& folder = "checkpoint") {
  const SampleCase sample(name, folder);
  return torch_dcp_driver().manifest(sample.place(), {}).dialect;
}

}  // namespace

TEST_CASE("tensors of every DCP sample hash as PyTorch loaded them") {
  for (const std::string& name : dcp_samples()) {
    CAPTURE(name);
    const SampleCase sample(name, folder_of(name));
    const Manifest manifest = read_located(sample, 2);
    CHECK(testing::content_of(manifest, *sample.directory) ==
          testing::expected_content(sample.expected));
  }
}

TEST_CASE("values of every DCP sample are those PyTorch loaded") {
  for (const std::string& name : dcp_samples()) {
    CAPTURE(name);
    const SampleCase sample(name, folder_of(name));
    const Manifest manifest = read_located(sample);
    const auto values = testing::values_of(manifest, *sample.directory);
    for (const auto& [key, value] : testing::expected_values(sample.expected)) {
      CAPTURE(key);
      REQUIRE(values.contains(key));
      CHECK(values.at(key) == value);
    }
  }
}

TEST_CASE("the number of writing ranks comes from the file names") {
  for (const std::string& name : dcp_samples()) {
    CAPTURE(name);
    const SampleCase sample(name, folder_of(name));
    const Manifest manifest = torch_dcp_driver().manifest(sample.place(), {});
    CHECK(manifest.world_size == sample.expected.find("world_size")->as_int());
    CHECK_THAT(manifest.world_size_source, Catch::StartsWith("rank numbers in "));
  }
}

TEST_CASE("healthy samples have no findings") {
  for (const std::string& name : dcp_samples()) {
    CAPTURE(name);
    const SampleCase sample(name, folder_of(name));
    ReadOptions options;
    options.tolerate_damage = true;
    for (const Note& note : torch_dcp_driver().manifest(sample.place(), options).notes) {
      CAPTURE(testing::note_code(note), note.message);
      CHECK(note.severity == Severity::kInfo);
    }
  }
}

TEST_CASE("records carry checksums, and their number does not depend on threads") {
  const SampleCase sample("dcp/fsdp2_w4");
  const Manifest one = read_located(sample, 1);
  const Manifest four = read_located(sample, 4);
  REQUIRE(one.chunks.size() == four.chunks.size());
  for (std::size_t c = 0; c < one.chunks.size(); ++c) {
    CHECK(one.chunks.source(c).kind == Source::Kind::kExtent);
    CHECK(one.chunks.source(c).record != 0);
    CHECK(one.chunks.source(c).record == four.chunks.source(c).record);
    CHECK(one.chunks.source(c).offset == four.chunks.source(c).offset);
  }
}

TEST_CASE("each release's dialect is named") {
  CHECK(dialect_of("dcp-old/torch-1.13.1_shardedtensor_w2") == "DCP, PyTorch 1.13");
  CHECK(dialect_of("dcp-old/torch-2.0.1_shardedtensor_w2") == "DCP, PyTorch 2.0 to 2.2");
  CHECK(dialect_of("dcp-old/torch-2.2.2_dtensor_2x2") == "DCP, PyTorch 2.0 to 2.2");
  CHECK(dialect_of("dcp-old/torch-2.3.1_dtensor_w2") == "DCP, PyTorch 2.3");
  CHECK(dialect_of("dcp-old/torch-2.6.0_fsdp2_w3") == "DCP, PyTorch 2.4 to 2.9");
  CHECK(dialect_of("dcp/fsdp2_w4") == "DCP, PyTorch 2.10 or newer (version 1.0.0)");
  CHECK_THAT(dialect_of("dcp/fsdp2_w2_rank_local"), Catch::EndsWith(", rank-local metadata"));
  CHECK_THAT(dialect_of("olmo-core/model_and_optim_w2", "checkpoint/model_and_optim"),
             Catch::EndsWith(", OLMo-core's writer"));
  CHECK_THAT(dialect_of("megatron/torch_dist_tp2_dp2", "checkpoint/iter_0000100"),
             Catch::EndsWith(", Megatron attributes"));
}

TEST_CASE("tensors of Megatron's torch_dist files read as DCP") {
  for (const std::string& name : testing::sample_names("megatron")) {
    if (name.find("torch_dist") == std::string::npos) continue;
    CAPTURE(name);
    const SampleCase sample(name, "checkpoint/iter_0000100");
    CHECK(testing::content_of(read_located(sample), *sample.directory) ==
          testing::expected_content(sample.expected));
  }
}

TEST_CASE("probing tells whole, interrupted and foreign folders apart") {
  using Answer = ProbeResult::Answer;
  const auto answer = [](const std::string& name, const std::string& folder) {
    const SampleCase sample(name, folder);
    return torch_dcp_driver().probe(sample.place()).answer;
  };
  CHECK(answer("dcp/fsdp2_w4", "checkpoint") == Answer::kYes);
  CHECK(answer("dcp/fsdp2_w2_rank_local", "checkpoint") == Answer::kYes);
  // Megatron's, too: what decides is that its own format knows more of the same files.
  CHECK(answer("megatron/torch_dist_tp2_dp2", "checkpoint/iter_0000100") == Answer::kYes);
  const SampleCase megatron("megatron/torch_dist_tp2_dp2", "checkpoint/iter_0000100");
  CHECK(torch_dcp_driver().probe(megatron.place()).knows == ProbeResult::Knows::kNames);
  CHECK(answer("hostile/dcp_no_metadata", "") == Answer::kMaybe);
  CHECK(answer("safetensors/hf_sharded", "checkpoint") == Answer::kNo);
  CHECK(answer("dcp/fsdp2_w4", "") == Answer::kNo);
}

TEST_CASE("a manifest takes at most 120 bytes per chunk of a matrix") {
  const SampleCase sample("dcp/fsdp2_w4");
  const Manifest manifest = read_located(sample);
  const std::size_t bytes =
      manifest.chunks.memory_bytes() + manifest.records.size() * sizeof(Record);
  CHECK(bytes <= 120 * manifest.chunks.size());
}

}  // namespace tessera::torch_dcp_read_test

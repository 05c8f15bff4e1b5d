// safetensors samples, healthy and hostile, against the oracle of the real writers.
#include <tessera/base/error.h>
#include <tessera/format/registry.h>
#include <tessera/format/safetensors.h>

#include <catch2/catch.hpp>

#include "tests/support/note_text.h"
#include "tests/support/written_checkpoint.h"

namespace tessera::safetensors_read_test {
namespace {

using testing::SampleCase;

Manifest read(const SampleCase& sample, const std::string& file = "",
              const ReadOptions& options = {}) {
  return testing::read_all(safetensors_driver(), {sample.directory.get(), file, sample.name},
                           options);
}

Status hostile(const std::string& file, bool tolerate = false) {
  // hostile/NAME is the folder itself; single files lie in hostile/.
  const bool single = file.ends_with(".safetensors");
  const SampleCase sample("hostile", single ? "" : file);
  ReadOptions options;
  options.tolerate_damage = tolerate;
  try {
    read(sample, single ? file : "", options);
  } catch (const Error& error) {
    return error.status();
  }
  return {};
}

}  // namespace

TEST_CASE("every safetensors sample hashes as its writer's own loader read it") {
  for (const std::string& name : testing::sample_names("safetensors")) {
    CAPTURE(name);
    const SampleCase sample(name);
    const Detection detection = detect_format(sample.place());
    REQUIRE(detection.driver == &safetensors_driver());
    const Manifest manifest = read(sample);
    CHECK(testing::content_of(manifest, *sample.directory) ==
          testing::expected_content(sample.expected));
    CHECK(testing::values_of(manifest, *sample.directory).empty());
    for (const Note& note : manifest.notes) {
      CAPTURE(note.message);
      CHECK(note.severity == Severity::kInfo);
    }
  }
}

TEST_CASE("one safetensors file is a checkpoint of its own") {
  const SampleCase sample("safetensors/all_dtypes");
  const Manifest manifest = read(sample, "model.safetensors");
  CHECK(testing::content_of(manifest, *sample.directory) ==
        testing::expected_content(sample.expected));
  CHECK(manifest.dialect == "one file");
  CHECK_FALSE(manifest.world_size.has_value());
  CHECK(manifest.provenance.at("__metadata__.format") == "pt");
  CHECK(manifest.provenance.at("__metadata__.note") == "größe");
  CHECK(manifest.state.entries[0].path ==
        Path{{PathItem::Kind::kKey, 0, manifest.state.entries[0].name}});
}

TEST_CASE("an index can be named as the checkpoint") {
  const SampleCase sample("safetensors/hf_sharded");
  const Manifest manifest = read(sample, "model.safetensors.index.json");
  CHECK(testing::content_of(manifest, *sample.directory) ==
        testing::expected_content(sample.expected));
  CHECK(manifest.files.size() == 3);
  CHECK(safetensors_driver()
            .probe({sample.directory.get(), "model.safetensors.index.json", ""})
            .answer == ProbeResult::Answer::kYes);
}

TEST_CASE("rank files of PyTorch's Hugging Face writer become chunks of whole tensors") {
  const SampleCase sample("safetensors/hf_dcp_sharded_w2");
  const Manifest manifest = read(sample);
  CHECK(manifest.world_size == 2);
  CHECK(manifest.world_size_source == "rank numbers in 2 file names");
  const StoredTensor* embed = manifest.find("embed.weight");
  REQUIRE(embed);
  CHECK(embed->spec.shape == Shape{11, 6});
  REQUIRE(embed->chunk_count == 2);
  CHECK(manifest.chunk(*embed, 0).box == Box{{0, 0}, Shape{6, 6}});
  CHECK(manifest.chunk(*embed, 1).box == Box{{6, 0}, Shape{5, 6}});
  CHECK(manifest.find("tokens_seen")->chunk_count == 1);
  CHECK_FALSE(read(SampleCase("safetensors/hf_dcp_full_w2")).world_size.has_value());
}

TEST_CASE("a lost rank file shows as a hole") {
  const SampleCase sample("safetensors/hf_dcp_sharded_w2");
  MemoryFileSystem fs;
  const std::string name = "shard-00002-model-00001-of-00001.safetensors";
  const auto file = sample.directory->open(name);
  Bytes content(file->size_bytes());
  file->read_at(0, content);
  fs.write_file("/c/" + name, content);
  const auto directory = fs.open_directory("/c");
  // Rank 2 alone: its pieces start at row 6 of embed.weight; one piece alone is no proof, but
  // offsets are.
  ReadOptions options;
  options.tolerate_damage = true;
  const Manifest manifest = safetensors_driver().manifest({directory.get(), "", "c"}, options);
  CHECK(std::any_of(manifest.notes.begin(), manifest.notes.end(), [](const Note& n) {
    return testing::note_code(n) == "CK012" && n.severity == Severity::kError &&
           n.tensor == "embed.weight";
  }));
  CHECK_THROWS_WITH(safetensors_driver().manifest({directory.get(), "", "c"}, {}),
                    Catch::Contains("corrupt"));
}

TEST_CASE("the shards that were consolidated are left alone, with a note") {
  const Manifest manifest = read(SampleCase("safetensors/hf_dcp_sharded_consolidated_w2"));
  REQUIRE(manifest.notes.size() == 1);
  CHECK(manifest.notes[0].file == "sharded");
}

TEST_CASE("hostile safetensors files are refused, naming the reason") {
  const std::pair<const char*, const char*> kCases[] = {
      {"st_header_past_end.safetensors", "header of 1000000000 bytes"},
      {"st_header_u64_max.safetensors", "18446744073709551615"},
      {"st_short.safetensors", "too few"},
      {"st_overlap.safetensors", "overlap"},
      {"st_hole.safetensors", "hole"},
      {"st_duplicate_keys.safetensors", "duplicate key"},
      {"st_negative_shape.safetensors", "negative"},
      {"st_shape_overflow.safetensors", "2^63"},
      {"st_trailing_bytes.safetensors", "follow the last tensor"},
      {"st_not_json.safetensors", "'{'"}};
  for (const auto& [file, words] : kCases) {
    CAPTURE(file);
    for (const bool tolerate : {false, true}) {
      // What follows the last tensor harms none of them: a finding where damage is reported.
      if (tolerate && std::string_view(words) == "follow the last tensor") continue;
      const Status status = hostile(file, tolerate);
      CHECK(status.code == Code::kCorrupt);
      CHECK(status.context.file == file);
      CHECK_THAT(status.message, Catch::Contains(words));
    }
    const SampleCase folder("hostile", "");
    CHECK(detect_format({folder.directory.get(), file, ""}).driver == &safetensors_driver());
  }
}

TEST_CASE(
    "an index that disagrees with its shards is refused, or reported where damage is reported") {
  const Status missing = hostile("index_missing_shard");
  CHECK(missing.code == Code::kCorrupt);
  CHECK_THAT(missing.to_string(), Catch::Contains("missing"));
  const Status key = hostile("index_key_not_in_shard");
  CHECK(key.code == Code::kCorrupt);
  CHECK_THAT(key.message, Catch::Contains("does not hold it"));
  CHECK(!key.context.tensor.empty());
  CHECK(!key.context.file.empty());
  CHECK(hostile("index_missing_shard", true).code == Code::kOk);
  CHECK(hostile("index_key_not_in_shard", true).code == Code::kOk);
}

}  // namespace tessera::safetensors_read_test

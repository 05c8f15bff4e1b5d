// Damaged torch-dcp checkpoints: refused with one clear message, or reported with stable codes.
#include <tessera/base/error.h>
#include <tessera/format/torch_dcp.h>
#include <tessera/storage/memory_file_system.h>

#include <catch2/catch.hpp>

#include "tests/support/dcp_builder.h"
#include "tests/support/note_text.h"
#include "tests/support/sample_case.h"

namespace tessera::torch_dcp_damage_test {
namespace {

using testing::SampleCase;

Status failure(const Place& place, const ReadOptions& options = {}) {
  try {
    Manifest manifest = torch_dcp_driver().manifest(place, options);
    torch_dcp_driver().locate(place, manifest, testing::all_tensors(manifest), options);
  } catch (const Error& error) {
    return error.status();
  }
  return {};
}

Status hostile(const std::string& name) {
  return failure(SampleCase("hostile/" + name, "").place());
}

/// A checkpoint of one tensor "w" [4,3] in two chunks and one value "epoch", in memory.
struct Small {
  MemoryFileSystem fs;
  testing::BuiltMetadata metadata;
  Bytes file;
  std::unique_ptr<Directory> directory;

  Small() {
    metadata.tensors = {{"w", "float32", {4, 3}, {{{0, 0}, {2, 3}}, {{2, 0}, {2, 3}}}}};
    metadata.values = {"epoch"};
    add("epoch", std::nullopt, testing::value_item(Value::integer(7)));
    add("w", testing::Numbers{0, 0}, testing::tensor_item({2, 3}, 0));
    add("w", testing::Numbers{2, 0}, testing::tensor_item({2, 3}, 6));
  }

  void add(const std::string& name, std::optional<testing::Numbers> origin, const Bytes& item) {
    metadata.items.push_back({name,
                              std::move(origin),
                              "__0_0.distcp",
                              static_cast<std::int64_t>(file.size()),
                              static_cast<std::int64_t>(item.size()),
                              {}});
    file.insert(file.end(), item.begin(), item.end());
  }

  Place place() {
    fs.write_file("/ck/__0_0.distcp", file);
    fs.write_file("/ck/.metadata", testing::build_metadata(metadata));
    directory = fs.open_directory("/ck");
    return {directory.get(), "", "ck"};
  }

  /// Throws without tolerance, and is a note with this code with it.
  void check_finding(const std::string& code, const std::string& message,
                     const std::string& tensor) {
    const Place where = place();
    const Status status = failure(where);
    CHECK(status.code == Code::kCorrupt);
    CHECK_THAT(status.message, Catch::Contains(message));
    CHECK(status.context.tensor == tensor);

    ReadOptions tolerant;
    tolerant.tolerate_damage = true;
    Manifest manifest = torch_dcp_driver().manifest(where, tolerant);
    torch_dcp_driver().locate(where, manifest, testing::all_tensors(manifest), tolerant);
    bool found = false;
    for (const Note& note : manifest.notes) {
      CAPTURE(testing::note_code(note), note.message);
      found = found || (testing::note_code(note) == code && note.severity == Severity::kError &&
                        note.tensor == tensor);
    }
    CHECK(found);
  }
};

}  // namespace

TEST_CASE("a healthy hand-made checkpoint reads") {
  Small small;
  const Place place = small.place();
  Manifest manifest = torch_dcp_driver().manifest(place, {});
  torch_dcp_driver().locate(place, manifest, testing::all_tensors(manifest), {});
  CHECK(manifest.tensors.size() == 1);
  CHECK(manifest.state.find("epoch")->value == Value::integer(7));
  CHECK(manifest.notes.empty());
  CHECK(manifest.world_size == 1);
}

TEST_CASE("hostile folders are refused") {
  CHECK(hostile("dcp_reduce").code == Code::kCorrupt);
  CHECK(hostile("dcp_zero_metadata").code == Code::kCorrupt);
  CHECK(hostile("dcp_negative_offset").code == Code::kCorrupt);
  CHECK(hostile("dcp_path_traversal").code == Code::kCorrupt);
  CHECK_THAT(hostile("dcp_path_traversal").message, Catch::Contains("../../etc/passwd"));
  CHECK_THAT(hostile("dcp_no_metadata").message, Catch::StartsWith("incomplete: no .metadata"));
  CHECK(hostile("dcp_missing_shard").context.file == "__0_0.distcp");
  CHECK(hostile("dcp_missing_shard").code == Code::kCorrupt);
  CHECK(hostile("dcp_offset_past_end").code == Code::kCorrupt);
  CHECK(hostile("dcp_offset_past_end").context.tensor == "a");
  CHECK(hostile("dcp_truncated_shard").code == Code::kCorrupt);
  CHECK_THAT(hostile("dcp_hole").message, Catch::StartsWith("coverage hole"));
  CHECK(hostile("dcp_hole").context.tensor == "a");
}

TEST_CASE("file names that leave the folder are refused, tolerated or not") {
  ReadOptions tolerant;
  tolerant.tolerate_damage = true;
  for (const std::string path : {"../x", "/etc/passwd", "a/b", "..", ".", "", "a\\b"}) {
    CAPTURE(path);
    Small small;
    small.metadata.items[1].file = path;
    CHECK(failure(small.place()).code == Code::kCorrupt);
    CHECK(failure(small.place(), tolerant).code == Code::kCorrupt);
  }
}

TEST_CASE("a missing data file is CK010") {
  Small small;
  small.metadata.items[1].file = "__1_0.distcp";
  small.check_finding("CK010", "missing", "");
}

TEST_CASE("a symbolic link in place of a data file is CK010") {
  Small small;
  small.metadata.items[1].file = "__1_0.distcp";
  small.fs.make_directories("/ck");
  small.fs.add_symlink("/ck/__1_0.distcp", "__0_0.distcp");
  small.check_finding("CK010", "is a symbolic link", "");
}

TEST_CASE("an item past the end of its file is CK011") {
  Small small;
  small.metadata.items[2].length += 1;
  small.check_finding("CK011", "past the file's end", "w");
}

TEST_CASE("an offset near 2^63 is CK011, not an overflow") {
  Small small;
  small.metadata.items[2].offset = INT64_MAX;
  small.check_finding("CK011", "past the file's end", "w");
}

TEST_CASE("elements in no chunk are CK012") {
  Small small;
  small.metadata.tensors[0].size = {5, 3};
  small.check_finding("CK012", "coverage hole", "w");
}

TEST_CASE("overlapping chunks are CK013") {
  Small small;
  small.metadata.tensors[0].chunks[1] = {{1, 0}, {3, 3}};
  small.metadata.items[2].origin = testing::Numbers{1, 0};
  small.check_finding("CK013", "overlap", "w");
}

TEST_CASE("a chunk outside its tensor is CK014") {
  Small small;
  small.metadata.tensors[0].chunks.push_back({{4, 0}, {2, 3}});
  small.add("w", testing::Numbers{4, 0}, testing::tensor_item({2, 3}, 0));
  small.check_finding("CK014", "leaves its tensor", "w");
}

TEST_CASE("a chunk without an item is CK015") {
  Small small;
  small.metadata.items.pop_back();
  small.check_finding("CK015", "no entry in storage_data", "w");
}

TEST_CASE("a value without an item is CK015") {
  Small small;
  small.metadata.values.push_back("lr");
  small.check_finding("CK015", "no entry in storage_data", "lr");
}

TEST_CASE("items that nothing needs are noted") {
  Small small;
  small.add("w", testing::Numbers{3, 0}, testing::tensor_item({1, 3}, 0));
  small.add("ghost", std::nullopt, testing::value_item(Value()));
  const Manifest manifest = torch_dcp_driver().manifest(small.place(), {});
  REQUIRE(manifest.notes.size() == 2);
  for (const Note& note : manifest.notes) {
    CHECK(testing::note_code(note) == "CK016");
    CHECK(note.severity == Severity::kWarning);
  }
  CHECK(manifest.tensors[0].chunk_count == 2);
}

TEST_CASE("data files of another save are noted and do not count as ranks") {
  Small small;
  small.fs.write_file("/ck/__7_0.distcp", small.file);
  small.fs.write_file("/ck/__2_0.distcp", {});
  const Manifest manifest = torch_dcp_driver().manifest(small.place(), {});
  REQUIRE(manifest.notes.size() == 1);
  CHECK(testing::note_code(manifest.notes[0]) == "CK018");
  CHECK(manifest.notes[0].file == "__7_0.distcp");
  CHECK(manifest.world_size == 3);  // the empty file of rank 2 does
}

TEST_CASE("an item of another shape or dtype than .metadata says is CK019") {
  Small small;
  small.metadata.tensors[0].dtype = "int32";
  small.check_finding("CK019", "its item holds a float32 [2,3]", "w");
  Small other;
  std::swap(other.metadata.items[0].offset, other.metadata.items[1].offset);
  std::swap(other.metadata.items[0].length, other.metadata.items[1].length);
  other.check_finding("CK019", "its item holds a value", "w");
}

TEST_CASE("an item whose archive is damaged is CK019") {
  Small small;
  const auto begin = static_cast<std::size_t>(small.metadata.items[1].offset);
  small.file[begin + 5] ^= std::byte{0xff};   // its first local header
  small.file[begin + 70] ^= std::byte{0xff};  // its pickle
  small.check_finding("CK019", "", "w");
  Small value;
  value.file[0] ^= std::byte{0xff};
  value.check_finding("CK019", "head of its archive is damaged", "epoch");
}

TEST_CASE("a chunk named twice in storage_data is corrupt") {
  Small small;
  small.metadata.items.push_back(small.metadata.items[1]);
  CHECK_THAT(failure(small.place()).message, Catch::Contains("twice"));
}

TEST_CASE("repeated equal chunks are kept once, empty ones give way to full ones") {
  Small small;
  auto& chunks = small.metadata.tensors[0].chunks;
  chunks.push_back(chunks[0]);
  chunks.push_back({{2, 0}, {0, 3}});  // releases before 2.8 gave empty shards a full one's origin
  const Manifest manifest = torch_dcp_driver().manifest(small.place(), {});
  CHECK(manifest.tensors[0].chunk_count == 2);
  CHECK(manifest.notes.empty());
}

TEST_CASE("an unknown transform is unsupported by name") {
  for (const std::string name : {"stream.lz4/1", "stream.zstd/2", "slice:0:5"}) {
    Small small;
    small.metadata.items[1].transforms = {name};
    const Status status = failure(small.place());
    CHECK(status.code == Code::kUnsupported);
    CHECK_THAT(status.message, Catch::Contains(name));
  }
}

TEST_CASE("a value that runs code is refused") {
  OpaqueObject system;
  system.how = OpaqueObject::How::kReduce;
  system.module = "os";
  system.name = "system";
  system.arguments = Value::list({Value::string("true")}, Value::Kind::kTuple);
  Small small;
  small.metadata.values.push_back("evil");
  small.add("evil", std::nullopt, testing::value_item(Value::opaque(system)));
  const Status status = failure(small.place());
  CHECK(status.code == Code::kCorrupt);
  CHECK(status.context.tensor == "evil");
  CHECK_THAT(status.message, Catch::Contains("os.system"));
}

}  // namespace tessera::torch_dcp_damage_test

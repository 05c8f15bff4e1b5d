// Trees of several ranks become one; damaged and hostile snapshots are refused or reported.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/format/torchsnapshot.h>
#include <tessera/storage/memory_file_system.h>

#include <catch2/catch.hpp>

#include "tests/support/note_text.h"
#include "tests/support/sample_case.h"

namespace tessera::torchsnapshot_ranks_test {
namespace {

/// A snapshot in memory: entries as JSON text, files as bytes.
struct Snapshot {
  MemoryFileSystem fs;
  std::string entries;
  int world_size = 2;
  std::unique_ptr<Directory> directory;

  Snapshot& entry(const std::string& path, const std::string& json) {
    entries += fmt::format("{}\"{}\":{}", entries.empty() ? "" : ",", path, json);
    return *this;
  }
  Snapshot& dict(const std::string& path, const std::string& keys) {
    return entry(path, R"({"type":"dict","keys":[)" + keys + "]}");
  }
  /// A float32 tensor in a file of its own.
  Snapshot& tensor(const std::string& path, const std::string& location, int numel,
                   const std::string& more = "") {
    return entry(path, fmt::format(R"({{"type":"Tensor","location":"{}",)"
                                   R"("serializer":"buffer_protocol","dtype":"torch.float32",)"
                                   R"("shape":[{}],"replicated":false{}}})",
                                   location, numel, more));
  }
  Snapshot& file(const std::string& name, std::size_t bytes, char fill = 1) {
    fs.write_file("/ck/" + name, Bytes(bytes, std::byte(fill)));
    return *this;
  }
  Place place() {
    const std::string text = fmt::format(
        R"({{"version":"0.1.0","world_size":{},"manifest":{{{}}}}})", world_size, entries);
    fs.write_file("/ck/.snapshot_metadata", as_bytes(text));
    directory = fs.open_directory("/ck");
    return {directory.get(), "", "ck"};
  }
  Manifest open(bool tolerate = false) {
    ReadOptions options;
    options.tolerate_damage = tolerate;
    const Place where = place();
    Manifest manifest = torchsnapshot_driver().manifest(where, options);
    torchsnapshot_driver().locate(where, manifest, testing::all_tensors(manifest), options);
    return manifest;
  }
  Status failure() {
    try {
      open();
    } catch (const Error& error) {
      return error.status();
    }
    return {};
  }
  bool notes(const std::string& code) {
    for (const Note& note : open(true).notes)
      if (testing::note_code(note) == code && note.severity == Severity::kError) return true;
    return false;
  }
};

std::vector<std::string> names(const Manifest& manifest) {
  std::vector<std::string> out;
  for (const StateEntry& entry : manifest.state.entries) out.push_back(entry.name);
  return out;
}
using Names = std::vector<std::string>;

constexpr const char* kOne = R"({"type":"int","serialized_value":"1","replicated":false})";
constexpr const char* kTwo = R"({"type":"int","serialized_value":"2","replicated":false})";

TEST_CASE("equal tensors of ranks are copies of one") {
  Snapshot snapshot;
  snapshot.dict("0/m", R"("w")").dict("1/m", R"("w")");
  snapshot.tensor("0/m/w", "0/m/w", 4).tensor("1/m/w", "1/m/w", 4);
  snapshot.file("0/m/w", 16).file("1/m/w", 16);
  const Manifest manifest = snapshot.open();
  CHECK(names(manifest) == Names{"m.w"});
  CHECK(manifest.find("m.w")->chunk_count == 2);
}

TEST_CASE("tensors that differ belong to their ranks") {
  Snapshot snapshot;
  snapshot.dict("0/m", R"("w")").dict("1/m", R"("w")");
  snapshot.tensor("0/m/w", "0/m/w", 4).tensor("1/m/w", "1/m/w", 4);
  snapshot.file("0/m/w", 16, 1).file("1/m/w", 16, 2);
  CHECK(names(snapshot.open()) == Names{"rank_0.m.w", "rank_1.m.w"});
}

TEST_CASE("a large tensor that differs where nobody looked first is refused when it is read") {
  Snapshot snapshot;
  snapshot.dict("0/m", R"("w")").dict("1/m", R"("w")");
  snapshot.tensor("0/m/w", "0/m/w", 50000).tensor("1/m/w", "1/m/w", 50000);
  snapshot.file("0/m/w", 200000);
  Bytes other(200000, std::byte(1));
  other[70000] = std::byte(2);
  snapshot.fs.write_file("/ck/1/m/w", other);
  const Status status = snapshot.failure();
  CHECK(status.code == Code::kUnsupported);
  CHECK(status.context.tensor == "m.w");
  CHECK_THAT(status.message, Catch::Contains("ranks hold different values"));
  CHECK_THAT(status.message, Catch::Contains("0/m/w") && Catch::Contains("1/m/w"));
}

TEST_CASE("keys of all ranks are one dict; a list differs as a whole") {
  Snapshot snapshot;
  snapshot.dict("0/p", R"("a","l")").dict("1/p", R"("a","b","l")");
  snapshot.entry("0/p/a", kOne).entry("1/p/a", kOne).entry("1/p/b", kTwo);
  snapshot.entry("0/p/l", R"({"type":"list"})").entry("1/p/l", R"({"type":"list"})");
  snapshot.entry("0/p/l/0", kOne).entry("0/p/l/1", kOne);
  snapshot.entry("1/p/l/0", kOne).entry("1/p/l/1", kTwo);
  CHECK(names(snapshot.open()) == Names{"p.a", "p.b", "rank_0.p.l", "rank_1.p.l"});
}

TEST_CASE("replicated entries stand under rank 0 alone, lists of them too") {
  Snapshot snapshot;
  snapshot.dict("0/p", R"("l")").dict("1/p", R"("l")");
  snapshot.entry("0/p/l", R"({"type":"list"})").entry("1/p/l", R"({"type":"list"})");
  snapshot.entry("0/p/l/0", R"({"type":"int","serialized_value":"7","replicated":true})");
  const Manifest manifest = snapshot.open();
  CHECK(names(manifest) == Names{"p.l"});
  CHECK(manifest.state.entries[0].value == Value::list({Value::integer(7)}));
}

TEST_CASE("a missing file is named; another rank's copy stands in where damage is tolerated") {
  Snapshot snapshot;
  snapshot.dict("0/m", R"("w")").dict("1/m", R"("w")");
  snapshot.tensor("0/m/w", "0/m/w", 4).tensor("1/m/w", "1/m/w", 4);
  snapshot.file("1/m/w", 16);
  const Status status = snapshot.failure();
  CHECK(status.code == Code::kCorrupt);
  CHECK(status.context.file == "0/m/w");
  CHECK(snapshot.notes("CK010"));
  CHECK(names(snapshot.open(true)) == Names{"m.w"});
}

TEST_CASE("files that are too short or too long are found") {
  Snapshot snapshot;
  snapshot.world_size = 1;
  snapshot.dict("0/m", R"("w")").tensor("0/m/w", "0/m/w", 4).file("0/m/w", 15);
  CHECK(snapshot.failure().code == Code::kCorrupt);
  CHECK(snapshot.notes("CK011"));
  snapshot.file("0/m/w", 17);
  CHECK(snapshot.failure().ok());
  CHECK(snapshot.notes("CK023"));
}

TEST_CASE("bytes after the last tensor of a slab are found, padding between tensors is not") {
  Snapshot snapshot;
  snapshot.world_size = 1;
  snapshot.dict("0/m", R"("a","b")");
  snapshot.tensor("0/m/a", "batched/s", 4, R"(,"byte_range":[8,24])");
  snapshot.tensor("0/m/b", "batched/s", 1, R"(,"byte_range":[0,4])");
  snapshot.file("batched/s", 24);
  CHECK(snapshot.open(true).notes.empty());
  snapshot.file("batched/s", 25);
  CHECK(snapshot.failure().ok());
  CHECK(snapshot.notes("CK023"));
}

TEST_CASE("what differs from rank to rank is said") {
  Snapshot snapshot;
  snapshot.dict("0/m", R"("w")").dict("1/m", R"("w")");
  snapshot.tensor("0/m/w", "0/m/w", 4).tensor("1/m/w", "1/m/w", 4);
  snapshot.file("0/m/w", 16, 1).file("1/m/w", 16, 2);
  const Manifest manifest = snapshot.open();
  REQUIRE(manifest.notes.size() == 1);
  CHECK(testing::note_code(manifest.notes[0]) == "CK070");
  CHECK(manifest.notes[0].severity == Severity::kInfo);
  CHECK_THAT(manifest.notes[0].message, Catch::Contains("1 entries") && Catch::Contains("m/w"));
}

TEST_CASE("an entry that is declared replicated and differs on another rank is a finding") {
  const auto entries = [](Snapshot& snapshot, const std::string& zero, const std::string& one) {
    snapshot.dict("0/m", R"("x")").dict("1/m", R"("x")");
    snapshot.entry("0/m/x", zero).entry("1/m/x", one);
  };
  const auto codes = [](Snapshot& snapshot) {
    std::vector<std::string> out;
    for (const Note& note : snapshot.open(true).notes)
      out.push_back(testing::note_code(note) + note.tensor);
    return out;
  };
  const auto number = [](int n) {
    return fmt::format(R"({{"type":"int","serialized_value":"{}","replicated":true}})", n);
  };
  const auto tensor = [](const char* location) {
    return fmt::format(R"({{"type":"Tensor","location":"{}","serializer":"buffer_protocol",)"
                       R"("dtype":"torch.float32","shape":[2],"replicated":true}})",
                       location);
  };
  Snapshot equal, different, tensors;
  entries(equal, number(1), number(1));
  CHECK(codes(equal).empty());
  entries(different, number(1), number(2));
  CHECK(codes(different) == std::vector<std::string>{"CK017m/x"});
  CHECK(different.open().state.entries.at(0).value == Value::integer(1));
  entries(tensors, tensor("a"), tensor("b"));
  tensors.file("a", 8, 1).file("b", 8, 2);
  CHECK(codes(tensors) == std::vector<std::string>{"CK017m/x"});
  CHECK(names(tensors.open()) == Names{"m.x"});
}

TEST_CASE("a hole between shards is found") {
  Snapshot snapshot;
  snapshot.world_size = 1;
  const auto shard = [](int offset, int size) {
    return fmt::format(
        R"({{"offsets":[{0}],"sizes":[{1}],"tensor":{{"location":"s{0}",)"
        R"("serializer":"buffer_protocol","dtype":"torch.float32","shape":[{1}]}}}})",
        offset, size);
  };
  snapshot.dict("0/m", R"("s")")
      .entry("0/m/s",
             R"({"type":"ShardedTensor","shards":[)" + shard(0, 2) + "," + shard(3, 1) + "]}");
  snapshot.file("s0", 8).file("s3", 4);
  CHECK(snapshot.failure().code == Code::kCorrupt);
  CHECK(snapshot.notes("CK012"));
}

TEST_CASE("an interrupted snapshot says that its metadata is missing") {
  MemoryFileSystem fs;
  fs.write_file("/ck/batched/f4af5a0e-8a79-422a-872e-f07dd87fa37b", Bytes(8));
  const auto directory = fs.open_directory("/ck");
  const Place place{directory.get(), "", "ck"};
  CHECK(torchsnapshot_driver().probe(place).answer == ProbeResult::Answer::kMaybe);
  CHECK_THROWS_WITH(torchsnapshot_driver().manifest(place, {}),
                    Catch::Contains("interrupted save"));
}

struct Refusal {
  const char* what;
  const char* entry;
  Code code;
  const char* message;
};

TEST_CASE("hostile entries are refused, naming the entry") {
  const Refusal refusals[] = {
      {"type", R"({"type":"lambda"})", Code::kUnsupported, "\"lambda\""},
      {"no type", R"({"keys":[]})", Code::kCorrupt, "\"type\" is missing"},
      {"no mapping", R"([1])", Code::kCorrupt, "expected a dict, found a list of 1"},
      {"key", R"({"type":"dict","keys":[null]})", Code::kCorrupt, "a key is neither"},
      {"negative shape",
       R"({"type":"Tensor","location":"x","serializer":"buffer_protocol","dtype":"torch.int8","shape":[-1]})",
       Code::kCorrupt, "expected a count at \"shape.0\", found -1"},
      {"overflow",
       R"({"type":"Tensor","location":"x","serializer":"buffer_protocol","dtype":"torch.int8","shape":[4611686018427387904,4]})",
       Code::kCorrupt, ""},
      {"dtype",
       R"({"type":"Tensor","location":"x","serializer":"buffer_protocol","dtype":"numpy.int8","shape":[1]})",
       Code::kCorrupt, "numpy.int8"},
      {"serializer",
       R"({"type":"Tensor","location":"x","serializer":"cloudpickle","dtype":"torch.int8","shape":[1]})",
       Code::kUnsupported, "cloudpickle"},
      {"range",
       R"({"type":"Tensor","location":"x","serializer":"buffer_protocol","dtype":"torch.int8","shape":[3],"byte_range":[0,4]})",
       Code::kCorrupt, "byte_range [0,4] disagrees"},
      {"backward range",
       R"({"type":"Tensor","location":"x","serializer":"buffer_protocol","dtype":"torch.int8","shape":[3],"byte_range":[4,1]})",
       Code::kCorrupt, "expected a range of bytes at \"byte_range\""},
      {"escape",
       R"({"type":"Tensor","location":"../../etc/passwd","serializer":"buffer_protocol","dtype":"torch.int8","shape":[3]})",
       Code::kCorrupt, ""},
      {"absolute",
       R"({"type":"object","location":"/etc/passwd","serializer":"torch_save","obj_type":"builtins.tuple","replicated":false})",
       Code::kCorrupt, ""},
      {"float", R"({"type":"float","serialized_value":"AAAA","replicated":false})", Code::kCorrupt,
       "8 bytes"},
      {"base64", R"({"type":"bytes","serialized_value":"A*==","replicated":false})", Code::kCorrupt,
       "base64"},
      {"int", R"({"type":"int","serialized_value":"1e3","replicated":false})", Code::kCorrupt,
       "the digits of an integer"},
      {"bool", R"({"type":"bool","serialized_value":"yes","replicated":false})", Code::kCorrupt,
       "expected \"True\" or \"False\""},
      {"no shards", R"({"type":"ShardedTensor","shards":[]})", Code::kCorrupt,
       "no rank has a shard"},
  };
  for (const Refusal& refusal : refusals) {
    CAPTURE(refusal.what);
    Snapshot snapshot;
    snapshot.world_size = 1;
    snapshot.dict("0/m", R"("x")").entry("0/m/x", refusal.entry).file("x", 64);
    const Status status = snapshot.failure();
    CHECK(status.code == refusal.code);
    CHECK_THAT(status.message, Catch::Contains(refusal.message));
  }
}

TEST_CASE("hostile trees are refused") {
  const auto failure_of = [](const std::string& path, const std::string& json) {
    Snapshot snapshot;
    snapshot.entry(path, json);
    return snapshot.failure();
  };
  CHECK_THAT(failure_of("9/m", kOne).message, Catch::Contains("rank 9 of a world of 2"));
  CHECK_THAT(failure_of("m", kOne).message, Catch::Contains("does not start with a rank"));
  CHECK_THAT(failure_of("0/m/x", kOne).message, Catch::Contains("no rank says what holds it"));
  CHECK_THAT(failure_of("0/m", R"({"type":"dict","keys":["gone"]})").message,
             Catch::Contains("has no entry for it"));
  std::string deep = "0";
  for (int i = 0; i < 5000; ++i) deep += "/a";
  CHECK_THAT(failure_of(deep, kOne).message, Catch::Contains("too deeply"));
  Snapshot gap;
  gap.entry("0/l", R"({"type":"list"})").entry("0/l/1", kOne);
  CHECK_THAT(gap.failure().message, Catch::Contains("item 0 is missing"));
  Snapshot worlds;
  worlds.world_size = 0;
  CHECK(worlds.failure().code == Code::kCorrupt);
}

}  // namespace
}  // namespace tessera::torchsnapshot_ranks_test

// Real snapshots read as torchsnapshot restores them.
#include <tessera/base/error.h>
#include <tessera/format/torchsnapshot.h>
#include <tessera/storage/checksum.h>
#include <tessera/storage/memory_file_system.h>

#include <catch2/catch.hpp>
#include <numeric>

#include "tests/support/sample_case.h"

namespace tessera::torchsnapshot_read_test {
namespace {

using testing::SampleCase;

constexpr const char* kData = TESSERA_SOURCE_DIR "/tests/format/data/torchsnapshot_w2";

struct Opened {
  std::unique_ptr<Directory> directory;
  Manifest manifest;

  explicit Opened(const FileSystem& fs, const std::string& path) {
    directory = fs.open_directory(path);
    const Place place{directory.get(), "", "snapshot"};
    manifest = torchsnapshot_driver().manifest(place, {});
    torchsnapshot_driver().locate(place, manifest, testing::all_tensors(manifest), {});
  }
};

/// "float32 [2,3] <sha256>" of elements 0, 1, 2, ...
template <class T>
std::string counted(const std::string& spec, int count, T first = 0) {
  std::vector<T> elements(static_cast<std::size_t>(count));
  std::iota(elements.begin(), elements.end(), first);
  Sha256 hash;
  hash.update(std::as_bytes(std::span(elements)));
  return spec + " " + hex(hash.finish());
}

/// A copy of the folder in memory.
void copy_folder(const FileSystem& from, const std::string& path, MemoryFileSystem& to,
                 const std::string& below = "") {
  const auto directory = from.open_directory(path);
  for (const FileInfo& info : directory->list(below)) {
    const std::string name = below.empty() ? info.name : below + "/" + info.name;
    if (info.type == FileType::kDirectory) {
      copy_folder(from, path, to, name);
      continue;
    }
    const auto file = directory->open(name);
    Bytes bytes(file->size_bytes());
    file->read_at(0, bytes);
    to.write_file("/ck/" + name, bytes);
  }
}

TEST_CASE("torchsnapshot samples read as torchsnapshot restores them") {
  const std::vector<std::string> names = testing::sample_names("torchsnapshot");
  REQUIRE_FALSE(names.empty());
  for (const std::string& name : names) {
    CAPTURE(name);
    const SampleCase sample(name);
    CHECK(torchsnapshot_driver().probe(sample.place()).answer == ProbeResult::Answer::kYes);
    Manifest manifest = torchsnapshot_driver().manifest(sample.place(), {});
    torchsnapshot_driver().locate(sample.place(), manifest, testing::all_tensors(manifest), {});
    CHECK(testing::content_of(manifest, *sample.directory) ==
          testing::expected_content(sample.expected));
    const auto values = testing::values_of(manifest, *sample.directory);
    for (const auto& [key, value] : testing::expected_values(sample.expected)) {
      CAPTURE(key);
      REQUIRE(values.contains(key));
      CHECK(values.at(key) == value);
    }
    CHECK(manifest.world_size == (name.ends_with("w1") ? 1 : 2));
  }
}

TEST_CASE("shards, chunks, slabs and archives of a two-rank snapshot make up their tensors") {
  const auto fs = make_posix_file_system();
  const Opened opened(*fs, kData);
  const auto content = testing::content_of(opened.manifest, *opened.directory);
  CHECK(content.at("sh.dt") == counted<float>("float32 [7,5]", 35));      // DTensor, Shard(0)
  CHECK(content.at("sh.rep") == counted<float>("float32 [7,5]", 35, 1));  // DTensor, Replicate()
  CHECK(content.at("st.s") == counted<float>("float32 [9,4]", 36));       // ShardedTensor
  CHECK(content.at("extra.bigchunk") == counted<std::int64_t>("int64 [100,3]", 300));
  CHECK(content.at("extra.zero") == counted<std::int64_t>("int64 []", 1, 3));
  CHECK(content.at("extra.only1").starts_with("float32 [2] "));  // rank 1's alone
  const std::int8_t quantized[] = {1, 3, 5, 7, 9, 11};           // 0..5 at scale 0.5, zero point 1
  Sha256 hash;
  hash.update(std::as_bytes(std::span(quantized)));
  CHECK(content.at("extra.q") == "qint8 [6] " + hex(hash.finish()));
  const StoredTensor* q = opened.manifest.find("extra.q");
  REQUIRE(q != nullptr);
  CHECK(opened.manifest.quant.at(static_cast<std::size_t>(q->quant)).scale == 0.5);
  CHECK(opened.manifest.quant.at(static_cast<std::size_t>(q->quant)).zero_point == 1);
}

TEST_CASE("what differs between ranks is each rank's own") {
  const auto fs = make_posix_file_system();
  const Opened opened(*fs, kData);
  const auto content = testing::content_of(opened.manifest, *opened.directory);
  CHECK(content.at("rank_0.extra.mine") == counted<float>("float32 [3]", 0).substr(0, 12) +
                                               content.at("rank_0.extra.mine").substr(12));
  CHECK(content.at("rank_0.extra.mine") != content.at("rank_1.extra.mine"));
  CHECK_FALSE(content.contains("extra.mine"));
  const auto values = testing::values_of(opened.manifest, *opened.directory);
  CHECK(values.at("rank_0.extra.myval") == "0");
  CHECK(values.at("rank_1.extra.myval") == "1");
}

TEST_CASE("values keep their types, keys their kinds") {
  const auto fs = make_posix_file_system();
  const Opened opened(*fs, kData);
  const auto values = testing::values_of(opened.manifest, *opened.directory);
  CHECK(values.at("extra.big") == R"({"__int__":"1208925819614629174706176"})");
  CHECK(values.at("extra.by") == R"({"__bytes_hex__":"0001ff"})");
  CHECK(values.at("extra.f") == R"({"__float__":"nan"})");
  CHECK(values.at("extra.flag") == "true");
  CHECK(values.at("extra.none") == "null");
  CHECK(values.at("extra.text") == R"("line\nnext: x")");
  CHECK(values.at("extra.ints.a/b") == "3");
  CHECK(values.at("extra.ints.50%.0") == "1");
  const StateEntry* one = opened.manifest.state.find("extra.ints.1");
  REQUIRE(one != nullptr);
  CHECK(one->path.back().kind == PathItem::Kind::kIntKey);
}

TEST_CASE("a snapshot with YAML metadata is the same snapshot") {
  const auto posix = make_posix_file_system();
  MemoryFileSystem fs;
  copy_folder(*posix, kData, fs);
  fs.write_file("/ck/.snapshot_metadata", fs.read_file("/ck/metadata.yaml"));
  const Opened json(*posix, kData);
  const Opened yaml(fs, "/ck");
  CHECK(yaml.manifest.dialect.find("YAML") != std::string::npos);
  CHECK(testing::content_of(yaml.manifest, *yaml.directory) ==
        testing::content_of(json.manifest, *json.directory));
  CHECK(testing::values_of(yaml.manifest, *yaml.directory) ==
        testing::values_of(json.manifest, *json.directory));
}

}  // namespace
}  // namespace tessera::torchsnapshot_read_test

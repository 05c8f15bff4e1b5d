// How items of every kind are located: strided, conjugated, encoded, in safetensors blobs, raw
// bytes.
#include <tessera/base/error.h>
#include <tessera/encoding/codec.h>
#include <tessera/format/torch_dcp.h>
#include <tessera/storage/memory_file_system.h>
#include <zstd.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "lib/format/torch_dcp/item_reader.h"
#include "lib/format/torch_dcp/item_tensor.h"
#include "tests/support/dcp_builder.h"
#include "tests/support/note_text.h"
#include "tests/support/sample_case.h"

namespace tessera::torch_dcp_items_test {
namespace {

using testing::SampleCase;

Manifest read(const Place& place, const ReadOptions& options = {}) {
  Manifest manifest = torch_dcp_driver().manifest(place, options);
  torch_dcp_driver().locate(place, manifest, testing::all_tensors(manifest), options);
  return manifest;
}

Bytes zstd(const Bytes& in) {
  Bytes out(ZSTD_compressBound(in.size()));
  out.resize(ZSTD_compress(out.data(), out.size(), in.data(), in.size(), 3));
  return out;
}

/// Tensor "w" [2,3] = 0..5 and value "v" = "text", both stored through `transforms`.
struct Encoded {
  MemoryFileSystem fs;
  std::unique_ptr<Directory> directory;

  Encoded(const std::vector<std::string>& transforms,
          const std::function<Bytes(const Bytes&)>& encode) {
    const Bytes value = encode(testing::value_item(Value::string("text")));
    const Bytes tensor = encode(testing::tensor_item({2, 3}, 0));
    testing::BuiltMetadata metadata;
    metadata.tensors = {{"w", "float32", {2, 3}, {{{0, 0}, {2, 3}}}}};
    metadata.values = {"v"};
    const auto at = static_cast<std::int64_t>(value.size());
    metadata.items = {
        {"v", {}, "__0_0.distcp", 0, at, transforms},
        {"w", {{0, 0}}, "__0_0.distcp", at, static_cast<std::int64_t>(tensor.size()), transforms}};
    Bytes file = value;
    file.insert(file.end(), tensor.begin(), tensor.end());
    fs.write_file("/ck/__0_0.distcp", file);
    fs.write_file("/ck/.metadata", testing::build_metadata(metadata));
    directory = fs.open_directory("/ck");
  }
  Place place() const { return {directory.get(), "", "ck"}; }

  /// The chain of the only tensor, run by hand as the executor runs it.
  void check_decodes() const {
    const Manifest manifest = read(place());
    CHECK(manifest.state.find("v")->value == Value::string("text"));
    const StoredTensor* tensor = manifest.find("w");
    REQUIRE(tensor);
    const Source& source = manifest.source(*tensor, 0);
    REQUIRE(source.kind == Source::Kind::kCoded);
    Bytes bytes(source.length);
    directory->open(manifest.files[source.file].path)->read_at(source.offset, bytes);
    for (const std::string& codec : manifest.codecs[source.side])
      bytes = decode(codec, bytes, 1 << 20);
    REQUIRE(bytes.size() == 24);
    for (int i = 0; i < 6; ++i)
      CHECK(load_le<float>(bytes.data() + 4 * i) == static_cast<float>(i));
  }
};

Bytes swap_case(const Bytes& in) { return decode("stream.rot13", in, in.size()); }

}  // namespace

TEST_CASE("zstd items decode by their chain and a slice") {
  Encoded({"stream.zstd/1"}, zstd).check_decodes();
}

TEST_CASE("rot13 items decode") { Encoded({"stream.rot13/1"}, swap_case).check_decodes(); }

TEST_CASE("transforms apply from left to right") {
  // The list is recorded in reading order: zstd is undone first here.
  Encoded({"stream.zstd/1", "stream.rot13/1"}, [](const Bytes& in) {
    return zstd(swap_case(in));
  }).check_decodes();
}

TEST_CASE("damage inside an encoded item shows when it is located") {
  // A bit of the tensor's own bytes, flipped before encoding: only the record's CRC can tell.
  const Encoded encoded({"stream.zstd/1"}, [](const Bytes& in) {
    Bytes damaged = in;
    const std::byte needle[4] = {std::byte{0}, std::byte{0}, std::byte{0x80}, std::byte{0x3f}};
    const auto one = std::search(damaged.begin(), damaged.end(), needle, needle + 4);  // 1.0f
    if (one != damaged.end()) *one ^= std::byte{1};
    return zstd(damaged);
  });
  try {
    read(encoded.place());
    FAIL("read without an error");
  } catch (const Error& error) {
    CHECK(error.code() == Code::kCorrupt);
    CHECK_THAT(error.status().message, Catch::Contains("CRC"));
    CHECK(error.status().context.tensor == "w");
  }
}

TEST_CASE("an encoded item beyond the memory limit is refused") {
  const Encoded encoded({"stream.rot13/1"}, swap_case);
  ReadOptions options;
  options.memory_limit_bytes = 100;
  try {
    read(encoded.place(), options);
    FAIL("read without an error");
  } catch (const Error& error) {
    CHECK(error.code() == Code::kResourceExhausted);
  }
}

TEST_CASE("strides and conjugation are kept") {
  const SampleCase sample("dcp/objects_w2");
  const Manifest manifest = read(sample.place());
  const Source& transposed = manifest.source(*manifest.find("plain.transposed"), 0);
  REQUIRE(transposed.side != 0);
  CHECK(manifest.strides[transposed.side - 1] == std::vector<std::int64_t>{1, 4});
  CHECK(transposed.length == 48);
  CHECK(manifest.source(*manifest.find("plain.conj"), 0).flags == Source::kConj);
  CHECK(manifest.source(*manifest.find("plain.slice_of_big"), 0).length == 12);
}

TEST_CASE("tensors inside values are embedded, with their data") {
  const SampleCase sample("dcp/objects_w2");
  const Manifest manifest = read(sample.place());
  const Value& tuple = manifest.state.find("nested.tuple")->value;
  REQUIRE(tuple.kind() == Value::Kind::kTuple);
  REQUIRE(tuple.as_list()[1].is_tensor());
  const StoredTensor& tensor = manifest.tensors[tuple.as_list()[1].tensor_index()];
  CHECK(tensor.embedded);
  CHECK(tensor.name == "nested.tuple");
  CHECK(manifest.source(tensor, 0).kind == Source::Kind::kExtent);
  CHECK(manifest.find("nested.tuple") == nullptr);
}

TEST_CASE("safetensors blobs inside data files are read by name") {
  const SampleCase sample("../tests/format/data/dcp_safetensors");
  const Manifest manifest = read(sample.place());
  CHECK(manifest.state.find("epoch")->value == Value::integer(3));
  const StoredTensor* w = manifest.find("model.w");
  REQUIRE(w);
  REQUIRE(w->chunk_count == 2);
  float value = 0;
  for (std::uint32_t i = 0; i < 2; ++i) {
    const Source& source = manifest.source(*w, i);
    REQUIRE(source.kind == Source::Kind::kExtent);
    Bytes bytes(source.length);
    sample.directory->open(manifest.files[source.file].path)->read_at(source.offset, bytes);
    for (std::size_t at = 0; at < bytes.size(); at += 4)
      CHECK(load_le<float>(bytes.data() + at) == value++);
  }
  CHECK(value == 15);
}

TEST_CASE("a chunk that a safetensors blob lost is reported") {
  // Both chunks of model.w are said to lie in rank 0's file, which holds the first alone.
  const SampleCase sample("../tests/format/data/dcp_safetensors");
  MemoryFileSystem fs;
  testing::BuiltMetadata metadata;
  metadata.tensors = {{"model.w", "float32", {6, 3}, {{{0, 0}, {3, 3}}, {{3, 0}, {3, 3}}}}};
  metadata.items = {{"model.w", {{0, 0}}, "__0_0.distcp", 0, 36, {}},
                    {"model.w", {{3, 0}}, "__0_0.distcp", 0, 36, {}}};
  const auto file = sample.directory->open("__0_0.distcp");
  Bytes bytes(file->size_bytes());
  file->read_at(0, bytes);
  fs.write_file("/ck/__0_0.distcp", bytes);
  fs.write_file("/ck/.metadata", testing::build_metadata(metadata));
  const auto directory = fs.open_directory("/ck");
  try {
    read({directory.get(), "", "ck"});
    FAIL("read without an error");
  } catch (const Error& error) {
    CHECK(error.code() == Code::kCorrupt);
    CHECK_THAT(error.status().message, Catch::Contains("another chunk"));
  }
}

// Halves of one storage with another tensor between them: each half alone would leave the other
// unproved.
TEST_CASE("tensors of a value that share a record are proved by one record") {
  Manifest manifest;
  manifest.files.push_back({"f", 4000, 0});
  dcp::SideTables tables(manifest);
  const auto in_record = [](std::uint64_t record, std::uint64_t offset) {
    dcp::LocatedChunk located;
    located.source.kind = Source::Kind::kExtent;
    located.source.offset = offset;
    located.source.length = 500;
    located.record = Record{};
    located.record->offset = record;
    located.record->length = 1000;
    return located;
  };
  const Source a = tables.join_embedded(in_record(1000, 1000));
  const Source other = tables.join_embedded(in_record(2000, 2000));
  const Source b = tables.join_embedded(in_record(1000, 1500));
  CHECK(manifest.records.size() == 2);
  CHECK(a.record == 1);
  CHECK(other.record == 2);
  CHECK(b.record == 1);
}

TEST_CASE("a value that is no archive stays raw bytes") {
  MemoryFileSystem fs;
  testing::BuiltMetadata metadata;
  metadata.tensors = {{"t", "float32", {0}, {}}};
  metadata.values = {"raw"};
  metadata.items = {{"raw", {}, "__0_0.distcp", 0, 5, {}}};
  fs.write_file("/ck/__0_0.distcp", as_bytes("bytes"));
  fs.write_file("/ck/.metadata", testing::build_metadata(metadata));
  const auto directory = fs.open_directory("/ck");
  const Manifest manifest = torch_dcp_driver().manifest({directory.get(), "", "ck"}, {});
  CHECK(manifest.state.find("raw")->value == Value::bytes("bytes", Value::Kind::kBytesIo));
  REQUIRE(manifest.notes.size() == 1);
  CHECK(testing::note_code(manifest.notes[0]) == "CK022");
}

TEST_CASE("rank-local saves merge: replicas in order of ranks, differing values reported") {
  MemoryFileSystem fs;
  for (const int rank : {0, 1, 10}) {
    testing::BuiltMetadata metadata;
    const std::string file = "__" + std::to_string(rank) + "_0.distcp";
    const Bytes same = testing::value_item(Value::string("same"));
    const Bytes own = testing::value_item(Value::integer(rank));
    const Bytes replica = testing::tensor_item({2}, 5);
    const Bytes rows = testing::tensor_item({1, 2}, static_cast<float>(2 * rank));
    Bytes content;
    const auto add = [&](const std::string& name, std::optional<testing::Numbers> origin,
                         const Bytes& item) {
      metadata.items.push_back({name,
                                std::move(origin),
                                file,
                                static_cast<std::int64_t>(content.size()),
                                static_cast<std::int64_t>(item.size()),
                                {}});
      content.insert(content.end(), item.begin(), item.end());
    };
    const std::int64_t row = std::min(rank, 2);
    metadata.tensors = {{"replica", "float32", {2}, {{{0}, {2}}}},
                        {"rows", "float32", {3, 2}, {{{row, 0}, {1, 2}}}}};
    metadata.values = {"same", "own"};
    add("same", {}, same);
    add("own", {}, own);
    add("replica", testing::Numbers{0}, replica);
    add("rows", testing::Numbers{row, 0}, rows);
    fs.write_file("/ck/" + file, content);
    fs.write_file("/ck/__" + std::to_string(rank) + ".metadata", testing::build_metadata(metadata));
  }
  const auto directory = fs.open_directory("/ck");
  const Manifest manifest = read({directory.get(), "", "ck"});
  const StoredTensor& replica = *manifest.find("replica");
  REQUIRE(replica.chunk_count == 3);
  for (std::uint32_t c = 0; c < 3; ++c) {
    CHECK(manifest.chunk(replica, c) == manifest.chunk(replica, 0));
    CHECK(manifest.files[manifest.source(replica, c).file].path ==
          std::vector{"__0_0.distcp", "__1_0.distcp", "__10_0.distcp"}[c]);
  }
  CHECK(manifest.find("rows")->chunk_count == 3);
  CHECK(manifest.state.find("same")->value == Value::string("same"));
  CHECK(manifest.state.find("own")->value == Value::integer(0));
  CHECK(manifest.world_size == 11);
  std::vector<std::string> codes;
  for (const Note& note : manifest.notes)
    codes.push_back(testing::note_code(note) + " " + note.tensor);
  std::sort(codes.begin(), codes.end());
  CHECK(codes == std::vector<std::string>{"CK017 own", "CK021 "});
}

TEST_CASE("runs of small items end where a large item, a gap or another file comes") {
  using dcp::Item;
  const std::vector<Item> items = {{0, 0, 0, 1000},     {0, 0, 1000, 500},  {0, 0, 1500, 100000},
                                   {0, 0, 101500, 200}, {0, 0, 200000, 10}, {1, 0, 200010, 10}};
  CHECK(dcp::run_ends(items) ==
        std::vector<std::uint64_t>{1500, 1500, 101500, 101700, 200010, 200020});
}

TEST_CASE("an empty shard may hold another empty shape than its chunk") {
  // As FSDP2 over tensor parallelism leaves it: .metadata says [4, 0], the item is a [0, 0] tensor.
  const auto read_with = [](const Shape& item_shape) {
    MemoryFileSystem fs;
    const Bytes full = testing::tensor_item({4, 2}, 0);
    const Bytes empty = testing::tensor_item(item_shape, 0);
    testing::BuiltMetadata metadata;
    metadata.tensors = {{"w", "float32", {4, 2}, {{{0, 0}, {4, 2}}, {{0, 2}, {4, 0}}}}};
    const auto at = static_cast<std::int64_t>(full.size());
    metadata.items = {
        {"w", {{0, 0}}, "__0_0.distcp", 0, at, {}},
        {"w", {{0, 2}}, "__0_0.distcp", at, static_cast<std::int64_t>(empty.size()), {}}};
    Bytes file = full;
    file.insert(file.end(), empty.begin(), empty.end());
    fs.write_file("/ck/__0_0.distcp", file);
    fs.write_file("/ck/.metadata", testing::build_metadata(metadata));
    const auto directory = fs.open_directory("/ck");
    return read({directory.get(), "", "ck"});
  };
  const Manifest manifest = read_with({0, 0});
  CHECK(manifest.find("w")->chunk_count == 2);
  CHECK(manifest.source(*manifest.find("w"), 1).length == 0);
  CHECK_THROWS_WITH(read_with({0, 1, 1}), Catch::Contains("its item holds a float32 [0,1,1]"));
  CHECK_THROWS_WITH(read_with({1, 1}), Catch::Contains("its item holds a float32 [1,1]"));
}

}  // namespace tessera::torch_dcp_items_test

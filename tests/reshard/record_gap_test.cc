// A record with a little in it that no tensor wants (padding) is proved all the same: the rest is
// read for its checksum.
#include <tessera/base/error.h>
#include <tessera/reshard/tensor_reader.h>
#include <tessera/storage/checksum.h>
#include <tessera/storage/memory_file_system.h>

#include <catch2/catch.hpp>

namespace tessera::record_gap_test {
namespace {

/// One file of bytes, one record over all of it, float32 tensors of these runs of it.
struct GapScene {
  MemoryFileSystem fs;
  Manifest manifest;
  std::unique_ptr<Directory> directory;

  GapScene(std::uint64_t bytes, const std::vector<std::pair<std::uint64_t, std::int64_t>>& runs) {
    Bytes content(bytes);
    for (std::size_t i = 0; i < content.size(); ++i) content[i] = static_cast<std::byte>(i * 7);
    manifest.files.push_back({"data", bytes, 0});
    manifest.records.push_back({0, crc32(0, content), 0, bytes});
    for (const auto& [offset, numel] : runs) add(offset, numel);
    write(content);
  }
  void add(std::uint64_t offset, std::int64_t numel) {
    StoredTensor tensor;
    tensor.name = "t" + std::to_string(manifest.tensors.size());
    tensor.spec = {DType::kFloat32, Shape{numel}};
    tensor.first_chunk = manifest.chunks.size();
    tensor.chunk_count = 1;
    Source source;
    source.kind = Source::Kind::kExtent;
    source.offset = offset;
    source.length = static_cast<std::uint64_t>(numel) * 4;
    source.record = 1;
    manifest.chunks.add(Chunk::whole_of(Box::whole(tensor.spec.shape)), source);
    manifest.tensors.push_back(std::move(tensor));
  }
  void write(const Bytes& content) {
    fs.write_file("/s/data", content);
    directory = fs.open_directory("/s");
  }
  void flip(std::size_t at) {
    Bytes content = fs.read_file("/s/data");
    content[at] ^= std::byte{1};
    write(content);
  }
  /// Reads all tensors, in one stream; what is wrong, "" if nothing.
  std::string failure() const {
    std::vector<std::uint32_t> all;
    for (std::uint32_t t = 0; t < manifest.tensors.size(); ++t) all.push_back(t);
    try {
      TensorReader(manifest, *directory, {}).stream(all, [](const TensorReader::Block&) {});
    } catch (const Error& error) {
      CHECK(error.code() == Code::kCorrupt);
      return error.status().to_string();
    }
    return "";
  }
};

}  // namespace

TEST_CASE("a turned bit in a record with padding ends reading") {
  // | t0 .. | gap | t1 .. | gap at the end |
  for (const std::size_t at : {0u, 399u, 405u, 408u, 800u, 1023u}) {
    CAPTURE(at);
    GapScene scene(1024, {{0, 100}, {408, 150}});
    CHECK(scene.failure() == "");
    scene.flip(at);
    CHECK_THAT(scene.failure(), Catch::Contains("stored checksum") && Catch::Contains("data"));
  }
}

TEST_CASE("one tensor alone is proved through its padding") {
  GapScene scene(1024, {{0, 250}});
  std::vector<std::byte> out(1000);
  TensorReader(scene.manifest, *scene.directory, {}).read(0, 0, 250, out);
  scene.flip(7);
  CHECK_THROWS_WITH(TensorReader(scene.manifest, *scene.directory, {}).read(0, 0, 250, out),
                    Catch::Contains("stored checksum"));
  // A part of a tensor proves nothing, as before.
  TensorReader(scene.manifest, *scene.directory, {}).read(0, 0, 8, MutableBytes(out).first(32));
}

TEST_CASE("what is left out on purpose is not read for a checksum") {
  constexpr std::uint64_t kBytes = std::uint64_t{1} << 20;
  GapScene scene(kBytes, {{0, 1000}});
  scene.flip(kBytes - 1);  // far behind the tensor
  CHECK(scene.failure() == "");
}

TEST_CASE("tensors that share elements leave no gap behind") {
  GapScene scene(1024, {{0, 200}, {0, 200}, {400, 100}, {804, 50}});
  CHECK(scene.failure() == "");
  scene.flip(1020);
  CHECK_THAT(scene.failure(), Catch::Contains("stored checksum"));
}

TEST_CASE("tensors that share a part of their elements are proved") {
  // | t0 .. 600 |
  //      | 400 .. t1 |     half of the record each, and 200 bytes both
  for (const std::size_t at : {0u, 399u, 500u, 601u, 1023u}) {
    CAPTURE(at);
    GapScene scene(1024, {{0, 150}, {400, 156}});
    CHECK(scene.failure() == "");
    scene.flip(at);
    CHECK_THAT(scene.failure(), Catch::Contains("stored checksum"));
  }
}

}  // namespace tessera::record_gap_test

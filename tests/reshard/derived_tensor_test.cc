// Tensors derived by manifest edits, read through the one data path: column cuts, steps, turned
// dims, and views into compressed items, against the whole source read first and cut in memory.
#include <tessera/reshard/tensor_reader.h>
#include <tessera/state/manifest_edit.h>
#include <tessera/storage/checksum.h>
#include <tessera/tensor/region_copy.h>

#include <catch2/catch.hpp>

#include "tests/support/reshard_scene.h"

namespace derived_tensor_test {

using namespace tessera;
using namespace tessera::test;

namespace {

/// The piece cut from the dense bytes of its source (rank 2, same dims or turned).
Bytes cut(const Bytes& whole, const Shape& shape, const TensorPiece& piece, int es) {
  std::vector<std::int64_t> strides;
  std::vector<std::int64_t> extents;
  std::int64_t first = 0;
  for (int d = 0; d < shape.rank(); ++d)
    first += piece.box.begin(d) * shape.strides()[static_cast<std::size_t>(d)];
  for (const int d : piece.dims) {
    const auto i = static_cast<std::size_t>(d);
    strides.push_back(shape.strides()[i] * piece.steps[i]);
    extents.push_back(piece.box.shape[d]);
  }
  const Shape made{std::span<const std::int64_t>(extents)};
  Bytes out(static_cast<std::size_t>(made.numel() * es));
  copy_region(made, es, whole.data() + first * es, strides, out.data(), made.strides());
  return out;
}

TensorPiece random_piece(std::mt19937_64& random, const Manifest& manifest, std::uint32_t source) {
  TensorPiece piece = whole_piece(manifest, source);
  const Shape& shape = manifest.tensors[source].spec.shape;
  for (int d = 0; d < shape.rank(); ++d) {
    const auto i = static_cast<std::size_t>(d);
    piece.box.origin[i] =
        static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(shape[d]));
    piece.steps.push_back(static_cast<std::int64_t>(1 + random() % 2));
    const std::int64_t most = (shape[d] - 1 - piece.box.origin[i]) / piece.steps[i] + 1;
    piece.box.shape[d] = static_cast<std::int64_t>(1 + random() % static_cast<std::uint64_t>(most));
    piece.dims.push_back(d);
  }
  if (random() % 2 == 0) std::swap(piece.dims[0], piece.dims[1]);
  return piece;
}

Bytes read_whole(const Manifest& manifest, const Directory& directory, std::uint32_t tensor,
                 std::uint64_t limit) {
  TransferOptions options;
  options.memory_limit_bytes = limit;
  TensorReader reader(manifest, directory, options);
  const TensorSpec& spec = manifest.tensors[tensor].spec;
  Bytes out(static_cast<std::size_t>(spec.size_bytes()));
  reader.read(tensor, 0, spec.shape.numel(), out);
  return out;
}

void check_pieces(Manifest& manifest, const Directory& directory, std::uint32_t source,
                  std::mt19937_64& random) {
  const TensorSpec spec = manifest.tensors[source].spec;
  const Bytes whole = read_whole(manifest, directory, source, 1 << 20);
  for (int round = 0; round < 4; ++round) {
    const TensorPiece piece = random_piece(random, manifest, source);
    std::vector<std::int64_t> extents;
    for (const int d : piece.dims) extents.push_back(piece.box.shape[d]);
    const std::uint32_t made = build_tensor(manifest, "made", Shape(extents), {{piece}});
    REQUIRE(read_whole(manifest, directory, made, 256 << 10) ==
            cut(whole, spec.shape, piece, element_bytes(spec.dtype)));
  }
}

}  // namespace

TEST_CASE("pieces of stored tensors read as cut from the whole") {
  for (std::uint64_t seed = 1; seed <= 120; ++seed) {
    INFO("seed " << seed);
    std::mt19937_64 random(seed);
    MemoryFileSystem fs;
    SceneBuilder builder(fs, "/s", seed);
    const TensorSpec spec{DType::kFloat32, Shape{static_cast<std::int64_t>(1 + random() % 70),
                                                 static_cast<std::int64_t>(1 + random() % 70)}};
    builder.add_tensor("t", spec, random_tiling(random, spec.shape), 2);
    Manifest manifest = builder.finish();
    std::unique_ptr<Directory> directory = fs.open_directory("/s");
    check_pieces(manifest, *directory, 0, random);
  }
}

TEST_CASE("pieces of a compressed item are views of it and its checksum is proved") {
  std::mt19937_64 random(3);
  MemoryFileSystem fs;
  fs.make_directories("/s");
  const Shape shape{9, 7};
  Bytes stored = tensor_bytes(0, {DType::kUInt8, shape});
  fs.write_file("/s/data", stored);
  Manifest manifest;
  manifest.files.push_back({"data", stored.size(), 0});
  manifest.codecs.push_back({"stream.rot13"});
  manifest.records.push_back({0, crc32(0, stored), 0, stored.size()});
  StoredTensor tensor;
  tensor.name = "t";
  tensor.spec = {DType::kUInt8, shape};
  tensor.chunk_count = 1;
  Source source;
  source.kind = Source::Kind::kCoded;
  source.length = stored.size();
  source.record = 1;
  manifest.chunks.add(Chunk::whole_of(Box::whole(shape)), source);
  manifest.tensors.push_back(tensor);
  std::unique_ptr<Directory> directory = fs.open_directory("/s");
  check_pieces(manifest, *directory, 0, random);
  // One view of another, and damage that either would show.
  TensorPiece rows = whole_piece(manifest, 0);
  rows.box = {{2, 0}, Shape{6, 7}};
  const std::uint32_t some = build_tensor(manifest, "rows", {6, 7}, {{rows}});
  check_pieces(manifest, *directory, some, random);
  manifest.records[0].crc32 ^= 1;
  CHECK_THROWS_WITH(read_whole(manifest, *directory, some, 1 << 20), Catch::Contains("checksum"));
}

}  // namespace derived_tensor_test

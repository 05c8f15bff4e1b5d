// TensorReader: logical bytes whatever the sharding; strided, swapped, conjugated, inline and
// filled sources; damage shows.
#include <tessera/base/error.h>
#include <tessera/reshard/tensor_reader.h>
#include <tessera/storage/checksum.h>

#include <catch2/catch.hpp>
#include <map>

#include "tests/support/reshard_scene.h"

namespace tensor_reader_test {

using namespace tessera;
using namespace tessera::test;

namespace {

/// One tensor whose only chunk has the given source.
struct OneTensor {
  MemoryFileSystem fs;
  Manifest manifest;

  OneTensor(const TensorSpec& spec, Source source, const Bytes& file) {
    fs.make_directories("/s");
    fs.write_file("/s/data", file);
    manifest.files.push_back({"data", file.size(), 0});
    StoredTensor tensor;
    tensor.name = "t";
    tensor.spec = spec;
    tensor.chunk_count = 1;
    manifest.tensors.push_back(tensor);
    manifest.chunks.add(Chunk::whole_of(Box::whole(spec.shape)), source);
  }

  Bytes read(std::uint64_t limit = 1 << 30) {
    std::unique_ptr<Directory> directory = fs.open_directory("/s");
    TransferOptions options;
    options.memory_limit_bytes = limit;
    TensorReader reader(manifest, *directory, options);
    const TensorSpec& spec = manifest.tensors[0].spec;
    Bytes out(static_cast<std::size_t>(spec.size_bytes()));
    reader.read(0, 0, spec.shape.numel(), out);
    return out;
  }
};

Source extent(std::uint64_t offset, std::uint64_t length, std::uint8_t flags = 0) {
  Source source;
  source.kind = Source::Kind::kExtent;
  source.offset = offset;
  source.length = length;
  source.flags = flags;
  return source;
}

template <class T>
Bytes raw(std::initializer_list<T> values) {
  Bytes bytes;
  for (T value : values) {
    Bytes one(sizeof(T));
    store_le(one.data(), value);
    bytes.insert(bytes.end(), one.begin(), one.end());
  }
  return bytes;
}

Code code_of(const std::function<void()>& f, std::string* message = nullptr) {
  try {
    f();
  } catch (const Error& error) {
    if (message != nullptr) *message = error.what();
    return error.code();
  }
  return Code::kOk;
}

}  // namespace

TEST_CASE("streamed blocks of random tensors follow each other and hold the right bytes") {
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    INFO("seed " << seed);
    std::mt19937_64 random(seed);
    MemoryFileSystem fs;
    SceneBuilder builder(fs, "/s", seed);
    std::vector<std::uint32_t> tensors;
    for (int t = 0; t < 5; ++t) {
      std::vector<std::int64_t> extents(random() % 4);
      for (std::int64_t& e : extents) e = static_cast<std::int64_t>(random() % 40);
      TensorSpec spec{DType::kFloat32, Shape(extents)};
      tensors.push_back(
          builder.add_tensor("t" + std::to_string(t), spec, random_tiling(random, spec.shape), 3));
    }
    Manifest manifest = builder.finish();
    std::unique_ptr<Directory> directory = fs.open_directory("/s");
    TransferOptions options;
    options.threads = 1 + static_cast<int>(seed % 3);
    options.memory_limit_bytes = 64 << 10;
    TensorReader reader(manifest, *directory, options);
    std::vector<Bytes> got(tensors.size());
    std::vector<int> lasts(tensors.size());
    reader.stream(tensors, [&](const TensorReader::Block& block) {
      Bytes& out = got[block.tensor];
      if (static_cast<std::int64_t>(out.size()) != block.first_element * 4) std::abort();
      out.insert(out.end(), block.bytes.begin(), block.bytes.end());
      lasts[block.tensor] += block.last;
    });
    for (std::uint32_t t : tensors) {
      const TensorSpec& spec = manifest.tensors[t].spec;
      Bytes whole = tensor_bytes(t, spec);
      REQUIRE(got[t] == whole);
      REQUIRE(lasts[t] == 1);
      std::int64_t numel = spec.shape.numel();
      std::int64_t begin = numel == 0 ? 0 : static_cast<std::int64_t>(random() % (numel + 1));
      std::int64_t end = begin + static_cast<std::int64_t>(random() % (numel - begin + 1));
      Bytes part(static_cast<std::size_t>(end - begin) * 4);
      reader.read(t, begin, end, part);
      REQUIRE(std::equal(part.begin(), part.end(), whole.begin() + begin * 4));
    }
  }
}

TEST_CASE("a transposed source comes out row-major, in one read or many") {
  constexpr std::int64_t kRows = 300;
  constexpr std::int64_t kColumns = 200;
  Bytes file(kRows * kColumns * 4 + 12);
  Bytes expected(kRows * kColumns * 4);
  for (std::int64_t r = 0; r < kRows; ++r) {
    for (std::int64_t c = 0; c < kColumns; ++c) {
      auto value = static_cast<std::int32_t>(r * 1000 + c);
      store_le(expected.data() + (r * kColumns + c) * 4, value);
      store_le(file.data() + 12 + (c * kRows + r) * 4, value);
    }
  }
  Source source = extent(12, kRows * kColumns * 4);
  source.side = 1;
  source.record = 1;
  OneTensor one({DType::kInt32, Shape{kRows, kColumns}}, source, file);
  one.manifest.strides.push_back({1, kRows});
  ByteView payload = ByteView(file).subspan(12);
  one.manifest.records.push_back({0, crc32(0, payload), 12, payload.size()});
  CHECK(one.read() == expected);
  CHECK(one.read(256 << 10) == expected);
  one.manifest.records[0].crc32 ^= 1;
  CHECK(code_of([&] { one.read(); }) == Code::kCorrupt);
  CHECK(code_of([&] { one.read(256 << 10); }) == Code::kCorrupt);
}

TEST_CASE("stride 0 repeats an element") {
  Source source = extent(0, 4);
  source.side = 1;
  OneTensor one({DType::kInt32, Shape{3, 2}}, source, raw<std::int32_t>({77}));
  one.manifest.strides.push_back({0, 0});
  CHECK(one.read() == raw<std::int32_t>({77, 77, 77, 77, 77, 77}));
}

TEST_CASE("byte order, conjugate and negation are resolved") {
  SECTION("big-endian complex64 swaps each half") {
    Bytes file = raw<float>({1.5f, -2.0f});
    std::reverse(file.begin(), file.begin() + 4);
    std::reverse(file.begin() + 4, file.end());
    OneTensor one({DType::kComplex64, Shape{1}}, extent(0, 8, Source::kByteSwap), file);
    CHECK(one.read() == raw<float>({1.5f, -2.0f}));
  }
  SECTION("conj flips imaginary parts, neg both") {
    Bytes file = raw<float>({1.0f, 2.0f, -3.0f, -4.0f});
    TensorSpec spec{DType::kComplex64, Shape{2}};
    CHECK(OneTensor(spec, extent(0, 16, Source::kConj), file).read() ==
          raw<float>({1.0f, -2.0f, -3.0f, 4.0f}));
    CHECK(OneTensor(spec, extent(0, 16, Source::kNeg), file).read() ==
          raw<float>({-1.0f, -2.0f, 3.0f, 4.0f}));
    CHECK(OneTensor(spec, extent(0, 16, Source::kNeg | Source::kConj), file).read() ==
          raw<float>({-1.0f, 2.0f, 3.0f, -4.0f}));
  }
  SECTION("neg of reals and integers; conj of reals is refused") {
    CHECK(OneTensor({DType::kFloat64, Shape{2}}, extent(0, 16, Source::kNeg),
                    raw<double>({0.0, -5.0}))
              .read() == raw<double>({-0.0, 5.0}));
    CHECK(
        OneTensor({DType::kInt16, Shape{2}}, extent(0, 4, Source::kNeg), raw<std::int16_t>({7, -8}))
            .read() == raw<std::int16_t>({-7, 8}));
    OneTensor real({DType::kFloat32, Shape{1}}, extent(0, 4, Source::kConj), raw<float>({1.0f}));
    CHECK(code_of([&] { real.read(); }) == Code::kUnsupported);
  }
}

TEST_CASE("inline, filled and compressed chunks read like stored ones") {
  Source source;
  source.kind = Source::Kind::kInline;
  OneTensor in_line({DType::kInt32, Shape{2}}, source, {});
  in_line.manifest.inline_bytes.push_back(raw<std::int32_t>({5, 6}));
  CHECK(in_line.read() == raw<std::int32_t>({5, 6}));

  source.kind = Source::Kind::kFill;
  OneTensor fill({DType::kInt32, Shape{3}}, source, {});
  fill.manifest.inline_bytes.push_back(raw<std::int32_t>({9}));
  CHECK(fill.read() == raw<std::int32_t>({9, 9, 9}));

  source.kind = Source::Kind::kCoded;
  source.length = 8;
  Bytes text;
  for (char c : std::string("ABCDefgh")) text.push_back(static_cast<std::byte>(c));
  OneTensor coded({DType::kUInt8, Shape{8}}, source, text);
  coded.manifest.codecs.push_back({"stream.rot13"});
  std::string got;
  for (std::byte b : coded.read()) got += static_cast<char>(b);
  CHECK(got != "ABCDefgh");
  CHECK(got.size() == 8);
}

TEST_CASE("sub-byte tensors move whole or not at all") {
  Bytes file{std::byte{0x12}, std::byte{0x34}, std::byte{0x50}};
  OneTensor one({DType::kFloat4, Shape{5}}, extent(0, 3), file);
  CHECK(one.read() == file);
  std::unique_ptr<Directory> directory = one.fs.open_directory("/s");
  TensorReader reader(one.manifest, *directory, {});
  Bytes out(2);
  CHECK(code_of([&] { reader.read(0, 0, 4, out); }) == Code::kUnsupported);
}

TEST_CASE("damage names the tensor and the file") {
  Bytes file = raw<std::int32_t>({1, 2, 3, 4});
  TensorSpec spec{DType::kInt32, Shape{4}};
  std::string message;
  SECTION("a flipped bit") {
    Source source = extent(0, 16);
    source.record = 1;
    OneTensor one(spec, source, file);
    one.manifest.records.push_back({0, crc32(0, file) ^ 0x10, 0, 16});
    CHECK(code_of([&] { one.read(); }, &message) == Code::kCorrupt);
  }
  SECTION("a short file") {
    OneTensor one(spec, extent(4, 16), file);
    CHECK(code_of([&] { one.read(); }, &message) == Code::kCorrupt);
  }
  SECTION("a file that changed its size") {
    OneTensor one(spec, extent(0, 16), file);
    one.manifest.files[0].size_bytes = 20;
    CHECK(code_of([&] { one.read(); }, &message) == Code::kCorrupt);
  }
  CHECK(message.find("\"t\"") != std::string::npos);
  CHECK(message.find("data") != std::string::npos);
}

TEST_CASE("a hole in the chunks is found before anything is read") {
  OneTensor one({DType::kInt32, Shape{4}}, extent(0, 8), raw<std::int32_t>({1, 2}));
  one.manifest.chunks = {};
  one.manifest.chunks.add(Chunk::whole_of(Box{{0}, Shape{2}}), extent(0, 8));
  std::string message;
  CHECK(code_of([&] { one.read(); }, &message) == Code::kCorrupt);
  CHECK(message.find("\"t\"") != std::string::npos);
}

TEST_CASE("ranges outside the tensor are refused") {
  OneTensor one({DType::kInt32, Shape{2}}, extent(0, 8), raw<std::int32_t>({1, 2}));
  std::unique_ptr<Directory> directory = one.fs.open_directory("/s");
  TensorReader reader(one.manifest, *directory, {});
  Bytes out(8);
  CHECK(code_of([&] { reader.read(0, 1, 3, out); }) == Code::kOutOfRange);
  CHECK(code_of([&] { reader.read(0, -1, 1, out); }) == Code::kOutOfRange);
}

TEST_CASE("tied tensors share a record and both are read, the record proved once") {
  Bytes file = raw<std::int32_t>({1, 2, 3, 4});
  Source source = extent(0, 16);
  source.record = 1;
  OneTensor one({DType::kInt32, Shape{4}}, source, file);
  one.manifest.records.push_back({0, crc32(0, file), 0, 16});
  one.manifest.tensors.push_back(one.manifest.tensors[0]);
  one.manifest.tensors[1].name = "tied";
  one.manifest.tensors[1].first_chunk = 1;
  one.manifest.chunks.add(Chunk::whole_of(Box::whole(Shape{4})), source);
  std::unique_ptr<Directory> directory = one.fs.open_directory("/s");
  TensorReader reader(one.manifest, *directory, {});
  std::vector<std::uint32_t> both{0, 1};
  int blocks = 0;
  reader.stream(both, [&](const TensorReader::Block& block) {
    ++blocks;
    CHECK(std::equal(block.bytes.begin(), block.bytes.end(), file.begin()));
  });
  CHECK(blocks == 2);
}

}  // namespace tensor_reader_test

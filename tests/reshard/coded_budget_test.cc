// Compressed items are decoded within the memory limit, however many threads want one at once.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/reshard/executor.h>
#include <tessera/reshard/tensor_reader.h>
#include <tessera/storage/checksum.h>
#include <zlib.h>
#include <zstd.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <functional>
#include <random>

#include "tests/support/reshard_scene.h"
#include "tests/support/sanitized.h"

namespace coded_budget_test {

using namespace tessera;
using namespace tessera::test;
using tessera::testing::kSanitized;

namespace {

Bytes compressed(ByteView bytes) {
  Bytes out(ZSTD_compressBound(bytes.size()));
  out.resize(ZSTD_compress(out.data(), out.size(), bytes.data(), bytes.size(), 1));
  return out;
}

/// `count` tensors of `numel` bytes, each one compressed item; `around` bytes lie before and after
/// it in what it decodes to, which a slice leaves out.
struct Items {
  MemoryFileSystem fs;
  Manifest manifest;
  std::vector<Bytes> expected;

  Items(int count, std::int64_t numel, std::size_t around, bool compressible = false) {
    const TensorSpec spec{DType::kUInt8, Shape{numel}};
    manifest.codecs.push_back({"stream.zstd"});
    if (around) manifest.codecs[0].push_back(fmt::format("slice:{}:{}", around, numel));
    std::mt19937_64 random(5);
    for (int i = 0; i < count; ++i) {
      Bytes bytes(static_cast<std::size_t>(numel), std::byte(i));
      if (!compressible)
        for (std::byte& b : bytes) b = static_cast<std::byte>(random());
      Bytes whole(around);
      whole.insert(whole.end(), bytes.begin(), bytes.end());
      whole.insert(whole.end(), around, std::byte{0});
      const Bytes stored = compressed(whole);
      const std::string path = fmt::format("f{}", i);
      fs.write_file("/s/" + path, stored);
      const auto number = static_cast<std::uint32_t>(i);
      manifest.files.push_back({path, stored.size(), 0});
      manifest.records.push_back({number, crc32(0, stored), 0, stored.size()});
      StoredTensor tensor;
      tensor.name = fmt::format("t{}", i);
      tensor.spec = spec;
      tensor.first_chunk = static_cast<std::uint64_t>(i);
      tensor.chunk_count = 1;
      Source source;
      source.kind = Source::Kind::kCoded;
      source.file = number;
      source.length = stored.size();
      source.record = number + 1;
      manifest.chunks.add(Chunk::whole_of(Box::whole(spec.shape)), source);
      manifest.tensors.push_back(tensor);
      expected.push_back(std::move(bytes));
    }
  }

  TransferOptions options(std::uint64_t limit, int threads) const {
    TransferOptions out;
    out.memory_limit_bytes = limit;
    out.threads = threads;
    return out;
  }

  /// Writes all tensors into one file; returns what was staged at most.
  TransferResult run(const std::string& out, std::uint64_t limit, int threads) {
    std::vector<std::pair<std::uint32_t, Chunk>> segments;
    for (std::uint32_t i = 0; i < manifest.tensors.size(); ++i)
      segments.emplace_back(i, Chunk::whole_of(Box::whole(manifest.tensors[i].spec.shape)));
    const OutputPlan output = make_output(manifest, segments, 1, 10);
    const Plan plan(manifest, output);
    const auto directory = fs.open_directory("/s");
    const auto stage = Stage::open(fs, out, "abc0", {});
    const TransferResult result =
        transfer(manifest, *directory, output, plan, fs, *stage, options(limit, threads));
    stage->publish([] {}, [] { return Bytes{}; });
    const Bytes written = fs.read_file(out + "/" + output.files[0].path);
    for (const Segment& segment : output.segments) {
      if (segment.kind != Segment::Kind::kTensor) continue;
      const Bytes& want = expected[segment.tensor];
      REQUIRE(std::memcmp(written.data() + segment.offset, want.data(), want.size()) == 0);
    }
    return result;
  }

  void stream(std::uint64_t limit, int threads) {
    const auto directory = fs.open_directory("/s");
    const TensorReader reader(manifest, *directory, options(limit, threads));
    std::vector<std::uint32_t> all;
    for (std::uint32_t i = 0; i < manifest.tensors.size(); ++i) all.push_back(i);
    std::vector<Bytes> got(all.size());
    reader.stream(all, [&](const TensorReader::Block& block) {
      got[block.tensor].insert(got[block.tensor].end(), block.bytes.begin(), block.bytes.end());
    });
    REQUIRE(same(got, expected));
  }
};

Code code_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.code();
  }
  return Code::kOk;
}

}  // namespace

TEST_CASE("many compressed items at once stay within the limit") {
  for (const std::size_t around : {std::size_t{0}, std::size_t{1000}}) {
    Items items(12, kMiB, around);
    for (const std::uint64_t limit : {5 * kMiB, 12 * kMiB, 100 * kMiB}) {
      for (const int threads : {1, 3, 8}) {
        if (kSanitized && threads == 1) continue;
        INFO("around " << around << ", limit " << limit << ", threads " << threads);
        const std::string out = fmt::format("/out_{}_{}", limit, threads);
        const TransferResult result = items.run(out, limit, threads);
        CHECK(result.peak_staged_bytes <= limit);
        CHECK(result.proved_bytes >= 12 * kMiB);
        items.stream(limit, threads);
      }
    }
  }
}

TEST_CASE("an item that cannot fit is refused, whatever the number of threads") {
  for (const int threads : {1, 8}) {
    Items items(3, 4 * static_cast<std::int64_t>(kMiB), 0);
    CHECK(code_of([&] { items.run("/out", 8 * kMiB, threads); }) == Code::kResourceExhausted);
    CHECK(code_of([&] { items.stream(8 * kMiB, threads); }) == Code::kResourceExhausted);
    CHECK(coded_bytes_needed(items.manifest, items.manifest.tensors[0], 0) >
          coded_bytes_bound(items.options(8 * kMiB, threads)));
    items.run("/fits", 12 * kMiB, threads);
  }
}

TEST_CASE("an item that decodes to more than its chunk says is decoded alone") {
  // The chunk is the start of what is stored, as at the edge of a chunked HDF5 dataset.
  Items items(6, kMiB, 0, /*compressible=*/true);
  for (std::size_t i = 0; i < 6; ++i) {
    items.manifest.views.push_back({0, 0, {}});
    Source& source = items.manifest.chunks.source(i);
    source.view = 1;
    source.side = static_cast<std::uint32_t>(i);
  }
  Manifest cut = items.manifest;
  cut.chunks = {};
  for (std::size_t i = 0; i < 6; ++i) {
    cut.tensors[i].spec.shape = Shape{1000};
    cut.chunks.add(Chunk::whole_of(Box::whole(Shape{1000})), items.manifest.chunks.source(i));
    items.expected[i].resize(1000);
  }
  items.manifest = cut;
  const TransferResult result = items.run("/out", 4 * kMiB, 8);
  CHECK(result.peak_staged_bytes <= 4 * kMiB);
  items.stream(4 * kMiB, 8);
}

TEST_CASE("a filter that gives more than its chunk, a checksum behind it, is taken at its word") {
  Items items(2, 144, 0);
  const Bytes whole(148);  // zeros, whose Fletcher sum is zero, too
  Bytes deflated(compressBound(whole.size()));
  uLongf size = deflated.size();
  REQUIRE(compress(reinterpret_cast<Bytef*>(deflated.data()), &size,
                   reinterpret_cast<const Bytef*>(whole.data()), whole.size()) == Z_OK);
  deflated.resize(size);
  items.manifest.codecs = {{"hdf5.deflate:148", "hdf5.fletcher32"}, {"hdf5.fletcher32"}};
  items.manifest.records.clear();
  for (std::uint32_t i = 0; i < 2; ++i) {
    const Bytes& stored = i == 0 ? deflated : whole;
    const std::string path = fmt::format("f{}", i);
    items.fs.write_file("/s/" + path, stored);
    items.manifest.files[i].size_bytes = stored.size();
    Source& source = items.manifest.chunks.source(i);
    source.length = stored.size();
    source.side = i;
    source.record = 0;
    items.expected[i] = Bytes(144);
  }
  items.run("/out", 4 * kMiB, 2);
  items.stream(4 * kMiB, 2);
}

TEST_CASE("damage in one compressed item ends the work of all threads") {
  Items items(12, kMiB, 0);
  Bytes bytes = items.fs.read_file("/s/f5");
  bytes[bytes.size() / 2] ^= std::byte{1};
  items.fs.write_file("/s/f5", bytes);
  CHECK(code_of([&] { items.run("/out", 5 * kMiB, 8); }) == Code::kCorrupt);
  CHECK(code_of([&] { items.stream(5 * kMiB, 8); }) == Code::kCorrupt);
}

}  // namespace coded_budget_test

#include <tessera/base/error.h>
#include <tessera/state/manifest.h>

#include <catch2/catch.hpp>
#include <random>

#include "tests/support/sanitized.h"

namespace manifest_test {

using namespace tessera;

namespace {

Chunk random_chunk(std::mt19937_64& random, int rank, bool flat) {
  Box box;
  std::vector<std::int64_t> extents;
  for (int d = 0; d < rank; ++d) {
    box.origin.push_back(static_cast<std::int64_t>(random() >> 20));
    extents.push_back(static_cast<std::int64_t>(random() % 50));
  }
  box.shape = Shape(extents);
  Chunk chunk = Chunk::whole_of(std::move(box));
  if (flat)
    chunk.flat_end =
        static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(chunk.flat_end + 1));
  return chunk;
}

/// Bytes per chunk of a table of `count` chunks of one tensor, appended one by one.
double bytes_per_chunk(std::int64_t count, bool flat) {
  ChunkTable table;
  for (std::int64_t i = 0; i < count; ++i) {
    Chunk chunk = Chunk::whole_of({{2 * i, 0}, {2, 4096}});
    if (flat) chunk = {{{0, 0}, {2 * count, 4096}}, 8192 * i, 8192 * (i + 1)};
    table.add(chunk, Source{});
  }
  return static_cast<double>(table.memory_bytes()) / static_cast<double>(count);
}

}  // namespace

TEST_CASE("a chunk table gives back what was put in") {
  std::mt19937_64 random(31);
  INFO("seed 31");
  ChunkTable table;
  std::vector<Chunk> chunks;
  for (int tensor = 0; tensor < 300; ++tensor) {
    const int rank = static_cast<int>(random() % 5);
    const auto count = random() % 6;
    for (std::size_t i = 0; i < count; ++i) {
      chunks.push_back(random_chunk(random, rank, random() % 3 == 0));
      table.add(chunks.back(), Source{.offset = chunks.size()});
    }
  }
  REQUIRE(table.size() == chunks.size());
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    CHECK(table.chunk(i, chunks[i].box.rank()) == chunks[i]);
    CHECK(table.source(i).offset == i + 1);
  }
  table.source(0).length = 5;
  CHECK(std::as_const(table).source(0).length == 5);
  CHECK_THROWS_AS(table.chunk(chunks.size(), 0), Error);
  CHECK_THROWS_AS(table.chunk(0, chunks[0].box.rank() + 1), Error);
}

TEST_CASE("a chunk of rank 2 takes at most 120 bytes, at any table size") {
  for (const std::int64_t count : {1000, 12345, 100'000, 1'000'000}) {
    if (testing::kSanitized && count > 100'000) continue;
    INFO(count);
    CHECK(bytes_per_chunk(count, false) <= 120);
    CHECK(bytes_per_chunk(count, true) <= 120);
  }
}

TEST_CASE("tensors of many small ones take little more") {
  ChunkTable table;
  constexpr int kTensors = 100'000;
  for (int i = 0; i < kTensors; ++i)
    table.add(i % 2 == 0 ? Chunk::whole_of({{0, 0}, {4, 4}}) : Chunk::whole_of({{0}, {4}}),
              Source{});
  CHECK(static_cast<double>(table.memory_bytes()) / kTensors <= 120);
}

TEST_CASE("a manifest finds its tensors by name, embedded ones not") {
  Manifest manifest;
  manifest.tensors.push_back({.name = "hidden", .spec = {}, .embedded = true});
  manifest.tensors.push_back({.name = "w", .spec = {DType::kFloat32, {2}}});
  CHECK(manifest.find("hidden") == nullptr);
  CHECK(manifest.find("w") == &manifest.tensors[1]);
  CHECK(manifest.find("x") == nullptr);
}

TEST_CASE("kinds print as the commands name them") {
  CHECK(kind_name(TensorKind::kParam) == "param");
  CHECK(kind_name(TensorKind::kBuffer) == "buffer");
  CHECK(kind_name(TensorKind::kOptim) == "optim");
  CHECK(kind_name(TensorKind::kMaster) == "master");
  CHECK(kind_name(TensorKind::kOther) == "other");
}

}  // namespace manifest_test

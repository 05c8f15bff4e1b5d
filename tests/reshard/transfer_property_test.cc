// Random tensors, cut in random ways on both sides, moved and compared byte by byte with a
// brute-force oracle.
#include <tessera/reshard/executor.h>
#include <tessera/reshard/plan.h>
#include <tessera/storage/checksum.h>

#include <catch2/catch.hpp>

#include "tests/support/reshard_scene.h"

namespace transfer_property_test {

using namespace tessera;
using namespace tessera::test;

namespace {

constexpr DType kDTypes[] = {DType::kUInt8, DType::kBFloat16, DType::kFloat32, DType::kComplex128};

Shape random_shape(std::mt19937_64& random) {
  std::vector<std::int64_t> extents(random() % 5);
  for (std::int64_t& extent : extents) {
    extent = static_cast<std::int64_t>(random() % 9 + (random() % 8 == 0 ? 0 : 1));
  }
  return Shape(std::move(extents));
}

struct Scene {
  MemoryFileSystem fs;
  Manifest manifest;
  OutputPlan output;
};

void fill_scene(Scene& scene, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  SceneBuilder builder(scene.fs, "/source", seed);
  std::vector<std::pair<std::uint32_t, Chunk>> segments;
  auto tensors = 1 + random() % 6;
  auto files = static_cast<std::uint32_t>(1 + random() % 4);
  for (std::uint64_t t = 0; t < tensors; ++t) {
    TensorSpec spec{kDTypes[random() % 4], random_shape(random)};
    std::vector<Chunk> chunks = random_tiling(random, spec.shape);
    if (random() % 3 == 0) {  // replicas of some
      auto n = chunks.size();
      for (std::size_t i = 0; i < n; i += 2) chunks.push_back(chunks[i]);
    }
    std::uint32_t number = builder.add_tensor("t" + std::to_string(t), spec, chunks, files);
    for (const Chunk& chunk : random_tiling(random, spec.shape)) {
      segments.emplace_back(number, chunk);
    }
    if (random() % 4 == 0) {  // stored twice, cut another way
      for (const Chunk& chunk : random_tiling(random, spec.shape)) {
        segments.emplace_back(number, chunk);
      }
    }
  }
  scene.manifest = builder.finish();
  scene.output = make_output(scene.manifest, segments, static_cast<std::uint32_t>(1 + random() % 3),
                             random() % 40);
}

std::vector<Bytes> run(Scene& scene, const std::string& out, std::uint64_t limit, int threads,
                       TransferResult* result = nullptr) {
  scene.output.check(scene.manifest);
  Plan plan(scene.manifest, scene.output);
  std::unique_ptr<Directory> directory = scene.fs.open_directory("/source");
  std::unique_ptr<Stage> stage = Stage::open(scene.fs, out, "0123456789abcdef", {});
  TransferOptions options;
  options.memory_limit_bytes = limit;
  options.threads = threads;
  TransferResult done =
      transfer(scene.manifest, *directory, scene.output, plan, scene.fs, *stage, options);
  stage->publish([] {}, [] { return Bytes{}; });
  std::vector<Bytes> files;
  for (const OutputFile& file : scene.output.files) {
    files.push_back(scene.fs.read_file(out + "/" + file.path));
  }
  if (result != nullptr) *result = done;
  return files;
}

}  // namespace

TEST_CASE("every cut of every tensor arrives where brute force puts it") {
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    INFO("seed " << seed);
    Scene scene;
    fill_scene(scene, seed);
    std::vector<Bytes> expected = expected_files(scene.manifest, scene.output);
    TransferResult one;
    REQUIRE(run(scene, "/one", 64 << 10, 1, &one) == expected);
    REQUIRE(run(scene, "/four", 32 << 20, 4) == expected);
    for (std::size_t f = 0; f < expected.size(); ++f) {
      std::size_t blocks = (expected[f].size() + (1 << 20) - 1) >> 20;
      REQUIRE(one.crc32_per_mib[f].size() == blocks);
      if (blocks == 1) REQUIRE(one.crc32_per_mib[f][0] == crc32(0, expected[f]));
    }
  }
}

TEST_CASE("copy operations name every destination element once, with its own source") {
  for (std::uint64_t seed = 1000; seed < 1200; ++seed) {
    INFO("seed " << seed);
    Scene scene;
    fill_scene(scene, seed);
    Plan plan(scene.manifest, scene.output);
    for (std::size_t i = 0; i < plan.tensor_count(); ++i) {
      const StoredTensor& tensor = scene.manifest.tensors[plan.tensor(i)];
      std::map<std::uint64_t, std::vector<std::int64_t>> got;
      for (const CopyOp& op : plan.ops(i)) {
        std::vector<std::int64_t> moved = elements_of(tensor.spec.shape, Chunk::whole_of(op.box));
        std::vector<std::int64_t> held =
            elements_of(tensor.spec.shape,
                        scene.manifest.chunks.chunk(op.source_chunk, tensor.spec.shape.rank()));
        for (std::int64_t element : moved) {
          REQUIRE(std::find(held.begin(), held.end(), element) != held.end());
        }
        auto& list = got[op.segment];
        list.insert(list.end(), moved.begin(), moved.end());
        REQUIRE_FALSE(op.to_string(scene.manifest, scene.output).empty());
      }
      for (std::uint64_t segment : plan.segments(i)) {
        std::vector<std::int64_t> want = elements_of(
            tensor.spec.shape, scene.output.chunks[scene.output.segments[segment].payload].chunk());
        std::sort(want.begin(), want.end());
        std::sort(got[segment].begin(), got[segment].end());
        REQUIRE(got[segment] == want);
      }
    }
  }
}

TEST_CASE("each chosen byte is read about once and replicas are left alone") {
  MemoryFileSystem fs;
  SceneBuilder builder(fs, "/source", 5);
  TensorSpec spec{DType::kFloat32, Shape{64, 32}};
  std::vector<Chunk> rows;
  for (std::int64_t r = 0; r < 64; r += 16) {
    Chunk chunk = Chunk::whole_of(Box{{r, 0}, Shape{16, 32}});
    rows.push_back(chunk);
    rows.push_back(chunk);
  }
  builder.add_tensor("w", spec, rows, 3);
  Scene scene;
  Manifest manifest = builder.finish();
  std::vector<std::pair<std::uint32_t, Chunk>> columns;
  for (std::int64_t c = 0; c < 32; c += 8) {
    columns.emplace_back(0, Chunk::whole_of(Box{{0, c}, Shape{64, 8}}));
  }
  OutputPlan output = make_output(manifest, columns, 2, 10);
  Plan plan(manifest, output);
  CHECK(plan.sources(0).size() == 4);
  CHECK(plan.source_bytes() == 64 * 32 * 4);
  CHECK(plan.tensor_bytes() == 64 * 32 * 4);
  std::unique_ptr<Directory> directory = fs.open_directory("/source");
  std::unique_ptr<Stage> stage = Stage::open(fs, "/out", "00", {});
  TransferResult result = transfer(manifest, *directory, output, plan, fs, *stage, {});
  CHECK(result.proved_bytes == 64 * 32 * 4);
  CHECK(result.bytes_read >= 64 * 32 * 4);
  CHECK(result.bytes_read <= 64 * 32 * 8 + 400);
  stage->discard();
}

}  // namespace transfer_property_test

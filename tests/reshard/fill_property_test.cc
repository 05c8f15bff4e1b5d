// Random tensors, cut in random ways, filled into memory of random strides and compared with a
// brute-force oracle; and the other way round: live memory as the source of a transfer.
#include <tessera/reshard/executor.h>
#include <tessera/reshard/fill.h>

#include <catch2/catch.hpp>
#include <list>

#include "tests/support/reshard_scene.h"

namespace fill_property_test {

using namespace tessera;
using namespace tessera::test;

namespace {

constexpr DType kFillTypes[] = {DType::kUInt8, DType::kBFloat16, DType::kFloat32,
                                DType::kComplex128};
constexpr std::byte kUntouched{0xA5};

Shape shape_for_fill(std::mt19937_64& random) {
  std::vector<std::int64_t> extents(random() % 5);
  for (std::int64_t& extent : extents)
    extent = static_cast<std::int64_t>(random() % 9 + (random() % 8 == 0 ? 0 : 1));
  return Shape(std::move(extents));
}

/// Strides under which a box's elements are apart: its dims in random order, with gaps.
std::vector<std::int64_t> random_strides(std::mt19937_64& random, const Shape& shape,
                                         std::int64_t& span) {
  std::vector<std::size_t> order(static_cast<std::size_t>(shape.rank()));
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), random);
  std::vector<std::int64_t> strides(order.size(), 1);
  span = 1;
  for (const std::size_t d : order) {
    strides[d] = span + static_cast<std::int64_t>(random() % 3);
    span += strides[d] * (std::max<std::int64_t>(shape[static_cast<int>(d)], 1) - 1);
  }
  return strides;
}

/// Memory for one chunk; where each of its elements lies in it, in bytes.
struct Place {
  Bytes memory;
  std::vector<std::int64_t> strides;
  std::vector<std::size_t> at;
};

Place make_place(std::mt19937_64& random, const TensorSpec& spec, const Chunk& chunk) {
  const auto es = static_cast<std::size_t>(element_bytes(spec.dtype));
  Place place;
  std::int64_t span = chunk.numel();
  if (chunk.is_whole_box() && random() % 2 == 0)
    place.strides = random_strides(random, chunk.box.shape, span);
  place.memory.assign(static_cast<std::size_t>(span) * es, kUntouched);
  for (std::int64_t e = 0; e < chunk.numel(); ++e) {
    std::int64_t offset = e;
    if (!place.strides.empty()) {
      offset = 0;
      std::int64_t rest = e;
      for (int d = chunk.box.rank(); d-- > 0;) {
        offset += rest % chunk.box.shape[d] * place.strides[static_cast<std::size_t>(d)];
        rest /= chunk.box.shape[d];
      }
    }
    place.at.push_back(static_cast<std::size_t>(offset) * es);
  }
  return place;
}

/// What the memory must be: the chunk's elements at their places, everything else untouched.
Bytes expected_memory(const Place& place, std::uint32_t tensor, const TensorSpec& spec,
                      const Chunk& chunk) {
  const auto es = static_cast<std::size_t>(element_bytes(spec.dtype));
  const Bytes dense = chunk_bytes(tensor, spec, chunk);
  Bytes out(place.memory.size(), kUntouched);
  for (std::size_t e = 0; e < place.at.size(); ++e)
    std::copy_n(dense.begin() + static_cast<std::ptrdiff_t>(e * es), es,
                out.begin() + static_cast<std::ptrdiff_t>(place.at[e]));
  return out;
}

struct Filled {
  std::list<Place> places;
  std::vector<MemoryTarget> targets;
};

}  // namespace

TEST_CASE("live memory of any strides receives the elements brute force puts there") {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    INFO("seed " << seed);
    std::mt19937_64 random(seed);
    MemoryFileSystem fs;
    SceneBuilder builder(fs, "/source", seed);
    std::vector<TensorSpec> specs;
    for (std::uint64_t t = 0, n = 1 + random() % 6; t < n; ++t) {
      specs.push_back({kFillTypes[random() % 4], shape_for_fill(random)});
      builder.add_tensor("t" + std::to_string(t), specs.back(),
                         random_tiling(random, specs.back().shape),
                         static_cast<std::uint32_t>(1 + random() % 3));
    }
    const Manifest manifest = builder.finish();
    Filled filled;
    for (std::uint32_t t = 0; t < specs.size(); ++t) {
      for (const Chunk& chunk : random_tiling(random, specs[t].shape)) {
        if (random() % 3 == 0) continue;  // held by another rank
        Place& place = filled.places.emplace_back(make_place(random, specs[t], chunk));
        filled.targets.push_back({t, chunk, place.memory.data(), place.strides});
      }
    }
    const OutputPlan output = memory_plan(manifest, filled.targets);
    output.check(manifest);
    const Plan plan(manifest, output);
    TransferOptions options;
    options.memory_limit_bytes = random() % 2 == 0 ? 64 << 10 : 32 << 20;
    options.threads = 1 + static_cast<int>(random() % 3);
    const auto directory = fs.open_directory("/source");
    const TransferResult done = fill(manifest, *directory, output, plan, filled.targets, options);
    REQUIRE(done.bytes_written == plan.tensor_bytes());
    auto place = filled.places.begin();
    for (const MemoryTarget& target : filled.targets) {
      REQUIRE(place->memory ==
              expected_memory(*place, target.tensor, specs[target.tensor], target.chunk));
      ++place;
    }
  }
}

TEST_CASE("live memory of any strides is written as brute force reads it") {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    INFO("seed " << seed);
    std::mt19937_64 random(seed);
    MemoryFileSystem fs;
    fs.create_directory("/source");
    Manifest manifest;
    std::list<Place> places;
    std::vector<std::pair<std::uint32_t, Chunk>> segments;
    for (std::uint32_t t = 0, n = static_cast<std::uint32_t>(1 + random() % 6); t < n; ++t) {
      StoredTensor tensor;
      tensor.name = "t" + std::to_string(t);
      tensor.spec = {kFillTypes[random() % 4], shape_for_fill(random)};
      tensor.first_chunk = manifest.chunks.size();
      for (const Chunk& chunk : random_tiling(random, tensor.spec.shape)) {
        Place& place = places.emplace_back(make_place(random, tensor.spec, chunk));
        place.memory = expected_memory(place, t, tensor.spec, chunk);
        Source source;
        source.kind = Source::Kind::kMemory;
        source.offset = reinterpret_cast<std::uint64_t>(place.memory.data());
        source.length = place.memory.size();
        if (!place.strides.empty()) {
          manifest.strides.push_back(place.strides);
          source.side = static_cast<std::uint32_t>(manifest.strides.size());
        }
        manifest.chunks.add(chunk, source);
        ++tensor.chunk_count;
      }
      for (const Chunk& chunk : random_tiling(random, tensor.spec.shape)) {
        if (random() % 4 != 0) segments.emplace_back(t, chunk);  // else another rank's file
      }
      manifest.state.entries.push_back({tensor.name, {key_item(tensor.name)}, Value::tensor(t)});
      manifest.tensors.push_back(std::move(tensor));
    }
    const OutputPlan output = make_output(
        manifest, segments, static_cast<std::uint32_t>(1 + random() % 3), random() % 40);
    const Plan plan(manifest, output);
    const auto directory = fs.open_directory("/source");
    const auto stage = Stage::open(fs, "/out", "0123456789abcdef", {});
    TransferOptions options;
    options.memory_limit_bytes = random() % 2 == 0 ? 64 << 10 : 32 << 20;
    options.threads = 1 + static_cast<int>(random() % 3);
    transfer(manifest, *directory, output, plan, fs, *stage, options);
    stage->publish([] {}, [] { return Bytes{}; });
    const std::vector<Bytes> expected = expected_files(manifest, output);
    for (std::size_t f = 0; f < output.files.size(); ++f)
      REQUIRE(fs.read_file("/out/" + output.files[f].path) == expected[f]);
  }
}

TEST_CASE("a rank reads only the stored rows that its pieces need") {
  MemoryFileSystem fs;
  SceneBuilder builder(fs, "/source", 7);
  const TensorSpec spec{DType::kFloat32, {4096, 64}};  // 1 MiB in four files
  std::vector<Chunk> rows;
  for (std::int64_t r = 0; r < 4; ++r) rows.push_back(Chunk::whole_of({{r * 1024, 0}, {1024, 64}}));
  builder.add_tensor("w", spec, rows, 4);
  const Manifest manifest = builder.finish();
  const Chunk mine = Chunk::whole_of({{2048, 0}, {100, 64}});
  Bytes memory(100 * 64 * 4);
  const std::vector<MemoryTarget> targets{{0, mine, memory.data(), {}}};
  const OutputPlan output = memory_plan(manifest, targets);
  const Plan plan(manifest, output);
  REQUIRE(plan.sources(0).size() == 1);
  const auto directory = fs.open_directory("/source");
  const TransferResult done = fill(manifest, *directory, output, plan, targets, {});
  REQUIRE(memory == chunk_bytes(0, spec, mine));
  REQUIRE(done.bytes_read == memory.size());
}

}  // namespace fill_property_test

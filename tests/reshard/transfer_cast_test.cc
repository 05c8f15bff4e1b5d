// Casts while copying: the files are those of a source that was stored in the target type to begin
// with, for any cut, budget and thread count; and every element that did not fit is counted once.
#include <tessera/reshard/executor.h>
#include <tessera/reshard/plan.h>
#include <tessera/tensor/cast.h>
#include <tessera/tensor/region_copy.h>

#include <catch2/catch.hpp>

#include "tests/support/reshard_scene.h"

namespace transfer_cast_test {

using namespace tessera;
using namespace tessera::test;

namespace {

constexpr DType kFrom[] = {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16};
constexpr DType kTo[] = {DType::kBFloat16, DType::kFloat16, DType::kFloat32, DType::kFloat64,
                         DType::kFloat8E4M3Fn};

struct Scene {
  MemoryFileSystem fs;
  Manifest cast;    // stored in one type, read as another
  Manifest stored;  // the same tensors, stored as cast, in one file
  OutputPlan output;
  std::map<std::uint32_t, CastCounts> counts;
};

/// The tensors of `scene.cast` cast whole, in the file /stored/data.
void store_as_cast(Scene& scene, const std::vector<bool>& swapped) {
  Bytes file;
  scene.stored.files.push_back({"data", 0, 0});
  for (std::uint32_t t = 0; t < scene.cast.tensors.size(); ++t) {
    StoredTensor tensor = scene.cast.tensors[t];
    const TensorSpec from{tensor.stored_dtype(), tensor.spec.shape};
    Bytes raw = tensor_bytes(t, from);
    if (swapped[t]) swap_bytes(raw, element_bytes(from.dtype));
    Bytes cast(static_cast<std::size_t>(tensor.spec.size_bytes()));
    scene.counts[t] = cast_elements(from.dtype, raw, tensor.spec.dtype, cast);
    Source source;
    source.kind = Source::Kind::kExtent;
    source.offset = file.size();
    source.length = cast.size();
    file.insert(file.end(), cast.begin(), cast.end());
    tensor.cast_from.reset();
    tensor.first_chunk = scene.stored.chunks.size();
    tensor.chunk_count = 1;
    scene.stored.chunks.add(Chunk::whole_of(Box::whole(tensor.spec.shape)), source);
    scene.stored.tensors.push_back(tensor);
  }
  scene.stored.files[0].size_bytes = file.size();
  scene.fs.make_directories("/stored");
  scene.fs.write_file("/stored/data", file);
}

void fill_scene(Scene& scene, std::uint64_t seed, std::int64_t most) {
  std::mt19937_64 random(seed);
  SceneBuilder builder(scene.fs, "/source", seed);
  std::vector<std::pair<std::uint32_t, Chunk>> segments;
  std::vector<DType> to;
  const auto tensors = 1 + random() % 4;
  for (std::uint64_t t = 0; t < tensors; ++t) {
    std::vector<std::int64_t> extents(random() % 4);
    for (std::int64_t& extent : extents)
      extent = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most));
    const TensorSpec spec{kFrom[random() % 4], Shape(extents)};
    const std::uint32_t number =
        builder.add_tensor("t" + std::to_string(t), spec, random_tiling(random, spec.shape), 2);
    for (const Chunk& chunk : random_tiling(random, spec.shape))
      segments.emplace_back(number, chunk);
    if (random() % 3 == 0)  // written twice: still counted once
      for (const Chunk& chunk : random_tiling(random, spec.shape))
        segments.emplace_back(number, chunk);
    to.push_back(kTo[random() % 5]);
  }
  scene.cast = builder.finish();
  std::vector<bool> swapped;
  for (std::size_t t = 0; t < to.size(); ++t) {
    StoredTensor& tensor = scene.cast.tensors[t];
    swapped.push_back(random() % 3 == 0);
    for (std::uint32_t c = 0; swapped[t] && c < tensor.chunk_count; ++c)
      scene.cast.chunks.source(tensor.first_chunk + c).flags = Source::kByteSwap;
    tensor.cast_from = tensor.spec.dtype;
    tensor.spec.dtype = to[t];
  }
  store_as_cast(scene, swapped);
  scene.output = make_output(scene.cast, segments, 2, random() % 40);
}

std::vector<Bytes> run(Scene& scene, const Manifest& manifest, const std::string& from,
                       const std::string& out, std::uint64_t limit, int threads,
                       TransferResult& result) {
  scene.output.check(manifest);
  Plan plan(manifest, scene.output);
  std::unique_ptr<Directory> directory = scene.fs.open_directory(from);
  std::unique_ptr<Stage> stage = Stage::open(scene.fs, out, "0123456789abcdef", {});
  TransferOptions options;
  options.memory_limit_bytes = limit;
  options.threads = threads;
  result = transfer(manifest, *directory, scene.output, plan, scene.fs, *stage, options);
  stage->publish([] {}, [] { return Bytes{}; });
  std::vector<Bytes> files;
  for (const OutputFile& file : scene.output.files)
    files.push_back(scene.fs.read_file(out + "/" + file.path));
  return files;
}

void check_scene(Scene& scene, std::uint64_t limit) {
  TransferResult plain, one, four;
  const auto expected = run(scene, scene.stored, "/stored", "/expected", limit, 1, plain);
  REQUIRE(run(scene, scene.cast, "/source", "/one", limit, 1, one) == expected);
  REQUIRE(run(scene, scene.cast, "/source", "/four", limit, 4, four) == expected);
  REQUIRE(one.crc32_per_mib == plain.crc32_per_mib);
  REQUIRE(plain.casts.empty());
  for (const auto& [tensor, counts] : scene.counts) {
    const StoredTensor& stored = scene.cast.tensors[tensor];
    if (stored.spec.shape.numel() == 0 || stored.stored_dtype() == stored.spec.dtype) continue;
    INFO("tensor " << tensor << " " << torch_name(stored.stored_dtype()) << " to "
                   << torch_name(stored.spec.dtype));
    REQUIRE(one.casts.at(tensor).overflow_to_inf == counts.overflow_to_inf);
    REQUIRE(one.casts.at(tensor).underflow_to_zero == counts.underflow_to_zero);
    REQUIRE(four.casts.at(tensor).overflow_to_inf == counts.overflow_to_inf);
  }
}

}  // namespace

TEST_CASE("tensors cast while they are copied equal tensors stored in that type") {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    INFO("seed " << seed);
    Scene scene;
    fill_scene(scene, seed, 12);
    check_scene(scene, 64 << 10);
  }
}

TEST_CASE("large casts stay below the memory limit") {
  for (std::uint64_t seed = 500; seed < 504; ++seed) {
    INFO("seed " << seed);
    Scene scene;
    fill_scene(scene, seed, 90);
    check_scene(scene, 2 << 20);
    TransferResult result;
    run(scene, scene.cast, "/source", "/limited", 2 << 20, 2, result);
    CHECK(result.peak_staged_bytes <= (2u << 20));
  }
}

TEST_CASE("the reader of a cast tensor gives its elements in the new type") {
  Scene scene;
  fill_scene(scene, 7, 30);
  std::unique_ptr<Directory> source = scene.fs.open_directory("/source");
  std::unique_ptr<Directory> stored = scene.fs.open_directory("/stored");
  TensorReader cast(scene.cast, *source, {});
  TensorReader plain(scene.stored, *stored, {});
  for (std::uint32_t t = 0; t < scene.cast.tensors.size(); ++t) {
    const TensorSpec& spec = scene.cast.tensors[t].spec;
    const std::int64_t numel = spec.shape.numel();
    const std::int64_t begin = numel / 3;
    Bytes a(static_cast<std::size_t>(numel - begin) *
            static_cast<std::size_t>(element_bytes(spec.dtype)));
    Bytes b(a.size());
    cast.read(t, begin, numel, a);
    plain.read(t, begin, numel, b);
    CHECK(a == b);
  }
}

}  // namespace transfer_cast_test

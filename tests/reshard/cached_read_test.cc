// What lies in the page cache is read in small slices, straight into its places: the same bytes,
// the same checksums, the same errors.
#include <tessera/base/error.h>
#include <tessera/reshard/executor.h>
#include <tessera/reshard/fill.h>
#include <tessera/reshard/tensor_reader.h>
#include <tessera/storage/cache_probe.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <map>
#include <mutex>
#include <string>
#include <tuple>

#include "lib/reshard/pair_stream.h"
#include "tests/support/reshard_scene.h"
#include "tests/support/sanitized.h"

namespace cached_read_test {

using namespace tessera;
using namespace tessera::test;
using tessera::testing::kSanitized;

namespace {

enum class Cached { kAll, kNone, kEveryOtherMiB };

/// What a test wants to know of all reads.
struct Reads {
  Cached cached = Cached::kAll;
  std::atomic<std::size_t> count{0};
  std::atomic<std::size_t> longest{0};
  std::mutex mutex;
  std::map<std::tuple<std::string, std::uint64_t, std::uint64_t>, int> asked;  // range -> times
};

class ProbedFile final : public ReadFile, public CacheProbe {
 public:
  ProbedFile(std::unique_ptr<ReadFile> file, Reads& reads)
      : file_(std::move(file)), reads_(reads) {}
  std::uint64_t size_bytes() const override { return file_->size_bytes(); }
  const std::string& path() const override { return file_->path(); }
  void read_at(std::uint64_t offset, MutableBytes out) const override {
    ++reads_.count;
    std::size_t longest = reads_.longest;
    while (out.size() > longest && !reads_.longest.compare_exchange_weak(longest, out.size())) {
    }
    file_->read_at(offset, out);
  }
  bool lies_in_cache(std::uint64_t offset, std::uint64_t length) const override {
    {
      const std::lock_guard lock(reads_.mutex);
      ++reads_.asked[{path(), offset, length}];
    }
    if (reads_.cached == Cached::kEveryOtherMiB)
      return offset / kMiB % 2 == 0 && (offset + length - 1) / kMiB == offset / kMiB;
    return reads_.cached == Cached::kAll;
  }

 private:
  std::unique_ptr<ReadFile> file_;
  Reads& reads_;
};

class ProbedDirectory final : public Directory {
 public:
  ProbedDirectory(std::unique_ptr<Directory> directory, Reads& reads)
      : directory_(std::move(directory)), reads_(reads) {}
  const std::string& path() const override { return directory_->path(); }
  std::unique_ptr<ReadFile> open(std::string_view relative, IoMode mode) const override {
    return std::make_unique<ProbedFile>(directory_->open(relative, mode), reads_);
  }
  std::optional<FileInfo> stat(std::string_view relative) const override {
    return directory_->stat(relative);
  }
  std::vector<FileInfo> list(std::string_view relative) const override {
    return directory_->list(relative);
  }

 private:
  std::unique_ptr<Directory> directory_;
  Reads& reads_;
};

std::vector<Chunk> slices(const Shape& shape, int dim, std::int64_t parts) {
  std::vector<Chunk> out;
  for (std::int64_t p = 0; p < parts; ++p) {
    Box box = Box::whole(shape);
    box.origin[static_cast<std::size_t>(dim)] = shape[dim] * p / parts;
    box.shape[dim] = shape[dim] * (p + 1) / parts - shape[dim] * p / parts;
    out.push_back(Chunk::whole_of(box));
  }
  return out;
}

/// Tensors around the sizes at which ways part, cut along rows and along columns.
struct Scene {
  MemoryFileSystem fs;
  Manifest manifest;
  std::vector<std::uint32_t> tensors;
  std::vector<TensorSpec> specs;

  Scene() {
    SceneBuilder builder(fs, "/s", 11);
    int number = 0;
    for (const Shape& shape : {Shape{1031, 512}, Shape{4099, 257}, Shape{70000}, Shape{300, 130},
                               Shape{5}, Shape{2, 700, 300}}) {
      for (const int dim : {0, shape.rank() - 1}) {
        specs.push_back({DType::kFloat32, shape});
        tensors.push_back(builder.add_tensor("t" + std::to_string(number++), specs.back(),
                                             slices(shape, dim, 3), 3));
      }
    }
    manifest = builder.finish();
  }

  ProbedDirectory directory(Reads& reads) { return {fs.open_directory("/s"), reads}; }
};

std::vector<Bytes> streamed(Scene& scene, Reads& reads, int threads) {
  const ProbedDirectory directory = scene.directory(reads);
  TransferOptions options;
  options.threads = threads;
  const TensorReader reader(scene.manifest, directory, options);
  std::vector<Bytes> got(scene.tensors.size());
  reader.stream(scene.tensors, [&](const TensorReader::Block& block) {
    got[block.tensor].insert(got[block.tensor].end(), block.bytes.begin(), block.bytes.end());
  });
  return got;
}

}  // namespace

TEST_CASE("cached, uncached and half cached tensors hold the same bytes") {
  for (const Cached cached : {Cached::kAll, Cached::kNone, Cached::kEveryOtherMiB}) {
    if (kSanitized && cached != Cached::kEveryOtherMiB) continue;  // it takes both ways
    INFO("cached: " << static_cast<int>(cached));
    Scene scene;
    Reads reads;
    reads.cached = cached;
    const std::vector<Bytes> got = streamed(scene, reads, 2);
    const ProbedDirectory directory = scene.directory(reads);
    const TensorReader reader(scene.manifest, directory, {});
    for (const std::uint32_t t : scene.tensors) {
      const Bytes whole = tensor_bytes(t, scene.specs[t]);
      REQUIRE(same(got[t], whole));
      Bytes at_once(whole.size());
      reader.read(t, 0, scene.specs[t].shape.numel(), at_once);
      REQUIRE(same(at_once, whole));
    }
    reads.longest = 0;
    Bytes rows(tensor_bytes(0, scene.specs[0]).size());
    reader.read(0, 0, scene.specs[0].shape.numel(), rows);
    if (cached == Cached::kAll) CHECK(reads.longest <= 256 << 10);
    if (cached == Cached::kNone) CHECK(reads.longest > 512 << 10);
  }
}

TEST_CASE("pairs bring every tensor in order, two different ones at a time") {
  for (const int threads : {1, 3}) {
    if (kSanitized && threads == 1) continue;
    for (const Cached cached : {Cached::kAll, Cached::kNone}) {
      Scene scene;
      Reads reads;
      reads.cached = cached;
      const ProbedDirectory directory = scene.directory(reads);
      TransferOptions options;
      options.threads = threads;
      std::vector<Bytes> got(scene.tensors.size());
      std::vector<int> ends(scene.tensors.size());
      std::atomic<int> pairs{0}, mistakes{0};
      const auto take = [&](const TensorReader::Block& block) {
        Bytes& bytes = got[block.tensor];
        if (bytes.size() != static_cast<std::size_t>(block.first_element) * 4) ++mistakes;
        bytes.insert(bytes.end(), block.bytes.begin(), block.bytes.end());
        ends[block.tensor] += block.last;
      };
      stream_pairs(scene.manifest, directory, options, scene.tensors,
                   [&](const TensorReader::Block& first, const TensorReader::Block* second) {
                     take(first);
                     if (second == nullptr) return;
                     if (second->tensor == first.tensor) ++mistakes;
                     ++pairs;
                     take(*second);
                   });
      CHECK(mistakes == 0);
      CHECK(pairs > 0);
      for (const std::uint32_t t : scene.tensors) {
        REQUIRE(same(got[t], tensor_bytes(t, scene.specs[t])));
        REQUIRE(ends[t] == 1);
      }
    }
  }
}

TEST_CASE("a transfer of cached tensors writes what one of uncached ones does") {
  for (const Cached cached : {Cached::kAll, Cached::kNone, Cached::kEveryOtherMiB}) {
    if (kSanitized && cached != Cached::kEveryOtherMiB) continue;  // it takes both ways
    INFO("cached: " << static_cast<int>(cached));
    Scene scene;
    Reads reads;
    reads.cached = cached;
    std::vector<std::pair<std::uint32_t, Chunk>> segments;
    for (const std::uint32_t t : scene.tensors)
      for (const Chunk& chunk : slices(scene.specs[t].shape, 0, 2)) segments.emplace_back(t, chunk);
    const OutputPlan output = make_output(scene.manifest, segments, 2, 100);
    const Plan plan(scene.manifest, output);
    const ProbedDirectory directory = scene.directory(reads);
    const std::unique_ptr<Stage> stage = Stage::open(scene.fs, "/out", "abc0", {});
    TransferOptions options;
    options.threads = 2;
    const TransferResult result =
        transfer(scene.manifest, directory, output, plan, scene.fs, *stage, options);
    stage->publish([] {}, [] { return Bytes{}; });
    const std::vector<Bytes> expected = expected_files(scene.manifest, output);
    for (std::size_t f = 0; f < expected.size(); ++f)
      REQUIRE(same(scene.fs.read_file("/out/" + output.files[f].path), expected[f]));
    std::uint64_t total = 0;
    for (const TensorSpec& spec : scene.specs)
      total += static_cast<std::uint64_t>(spec.size_bytes());
    CHECK(result.proved_bytes == total);
    CHECK(result.bytes_read >= total);
    // Each question is a system call.
    REQUIRE(reads.asked.size() > scene.tensors.size());
    for (const auto& [range, times] : reads.asked) {
      INFO(std::get<0>(range) << " at " << std::get<1>(range) << ", " << std::get<2>(range));
      CHECK(times == 1);
    }
  }
}

TEST_CASE("tensors of any size in the page cache are filled and proved without a large block") {
  MemoryFileSystem fs;
  SceneBuilder builder(fs, "/s", 5);
  std::vector<MemoryTarget> targets;
  std::vector<Bytes> memory;
  constexpr std::int64_t kNumels[] = {150000, 20000, 300, 40000, 7, 90000, 16500, 120000};
  for (int n = 0; n < (kSanitized ? 16 : 64); ++n) {
    const TensorSpec spec{DType::kFloat32, Shape({kNumels[n % std::size(kNumels)]})};
    targets.push_back(
        {builder.add_tensor("t" + std::to_string(n), spec, slices(spec.shape, 0, 2), 2),
         Chunk::whole_of(Box::whole(spec.shape)),
         nullptr,
         {}});
    memory.emplace_back(static_cast<std::size_t>(spec.size_bytes()));
  }
  const Manifest manifest = builder.finish();
  for (std::size_t t = 0; t < targets.size(); ++t) targets[t].data = memory[t].data();
  const OutputPlan output = memory_plan(manifest, targets);
  const Plan plan(manifest, output);
  Reads reads;
  const ProbedDirectory directory(fs.open_directory("/s"), reads);
  const TransferResult filled = fill(manifest, directory, output, plan, targets, {});
  for (const MemoryTarget& target : targets)
    CHECK(same(memory[&target - targets.data()],
               tensor_bytes(target.tensor, manifest.tensors[target.tensor].spec)));
  const TransferResult proved = prove_fill(manifest, directory, output, plan, {});
  CHECK(proved.proved_bytes == filled.proved_bytes);
  CHECK(reads.longest <= kMiB);
  CHECK(filled.peak_staged_bytes <= kMiB + 2 * kIoAlignment);
  CHECK(proved.peak_staged_bytes <= kMiB + 2 * kIoAlignment);
}

TEST_CASE("what is only proved needs no place, wherever it lies") {
  for (const Cached cached : {Cached::kAll, Cached::kNone, Cached::kEveryOtherMiB}) {
    if (kSanitized && cached != Cached::kEveryOtherMiB) continue;  // it takes both ways
    INFO("cached: " << static_cast<int>(cached));
    Scene scene;
    Reads reads;
    reads.cached = cached;
    std::vector<MemoryTarget> targets;
    std::uint64_t total = 0;
    for (std::size_t t = 0; t < scene.tensors.size(); ++t) {
      for (const Chunk& chunk : slices(scene.specs[t].shape, 0, 2))
        targets.push_back({scene.tensors[t], chunk, nullptr, {}});
      total += static_cast<std::uint64_t>(scene.specs[t].size_bytes());
    }
    const OutputPlan output = memory_plan(scene.manifest, targets);
    const Plan plan(scene.manifest, output);
    TransferOptions options;
    options.threads = 2;
    const ProbedDirectory directory = scene.directory(reads);
    const auto prove = [&] { return prove_fill(scene.manifest, directory, output, plan, options); };
    CHECK(prove().proved_bytes == total);

    const Source& source = scene.manifest.chunks.source(scene.manifest.tensors[0].first_chunk);
    const std::string path = "/s/" + scene.manifest.files[source.file].path;
    Bytes bytes = scene.fs.read_file(path);
    bytes[source.offset + source.length / 2] ^= std::byte{4};
    scene.fs.write_file(path, bytes);
    CHECK_THROWS_WITH(prove(), Catch::Contains("t0"));
  }
}

TEST_CASE("damage in the page cache names the tensor and the file") {
  Scene scene;
  const Source& source = scene.manifest.chunks.source(scene.manifest.tensors[0].first_chunk);
  const std::string path = "/s/" + scene.manifest.files[source.file].path;
  Bytes bytes = scene.fs.read_file(path);
  bytes[source.offset + source.length / 2] ^= std::byte{4};
  scene.fs.write_file(path, bytes);
  Reads reads;
  std::string message;
  try {
    streamed(scene, reads, 1);
  } catch (const Error& error) {
    CHECK(error.code() == Code::kCorrupt);
    message = error.what();
  }
  CHECK_THAT(message, Catch::Contains("t0"));
  CHECK_THAT(message, Catch::Contains(scene.manifest.files[source.file].path));
}

}  // namespace cached_read_test

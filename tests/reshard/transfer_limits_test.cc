// The byte budget, thread counts, tensors larger than the budget, merged small tensors, damage,
// cancel and resume.
#include <tessera/base/error.h>
#include <tessera/reshard/executor.h>
#include <tessera/storage/checksum.h>
#include <tessera/storage/counting_file_system.h>
#include <tessera/storage/observed_file_system.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <functional>
#include <thread>

#include "tests/support/reshard_scene.h"
#include "tests/support/sanitized.h"

namespace transfer_limits_test {

using namespace tessera;
using namespace tessera::test;
using tessera::testing::kSanitized;

namespace {

std::vector<Chunk> rows(const Shape& shape, std::int64_t parts) {
  std::vector<Chunk> out;
  std::int64_t step = (shape[0] + parts - 1) / parts;
  for (std::int64_t r = 0; r < shape[0]; r += step) {
    Box box = Box::whole(shape);
    box.origin[0] = r;
    box.shape[0] = std::min(step, shape[0] - r);
    out.push_back(Chunk::whole_of(box));
  }
  return out;
}

std::vector<Chunk> columns(const Shape& shape, std::int64_t parts) {
  std::vector<Chunk> out;
  std::int64_t step = (shape[1] + parts - 1) / parts;
  for (std::int64_t c = 0; c < shape[1]; c += step) {
    Box box = Box::whole(shape);
    box.origin[1] = c;
    box.shape[1] = std::min(step, shape[1] - c);
    out.push_back(Chunk::whole_of(box));
  }
  return out;
}

using Cut = std::vector<Chunk> (*)(const Shape&, std::int64_t);

struct Case {
  MemoryFileSystem fs;
  Manifest manifest;
  OutputPlan output;
  std::vector<Bytes> expected;

  void build(const std::vector<Shape>& shapes, Cut from, std::int64_t n, Cut to, std::int64_t m) {
    SceneBuilder builder(fs, "/source", 3);
    std::vector<std::vector<std::pair<std::uint32_t, Chunk>>> by_rank(static_cast<std::size_t>(m));
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      std::uint32_t t = builder.add_tensor("t" + std::to_string(i), {DType::kFloat32, shapes[i]},
                                           from(shapes[i], n), static_cast<std::uint32_t>(n));
      std::vector<Chunk> chunks = to(shapes[i], m);
      for (std::size_t c = 0; c < chunks.size(); ++c) by_rank[c].emplace_back(t, chunks[c]);
    }
    manifest = builder.finish();
    // make_output deals segments out in turn: rank r's go to file r when all ranks have as many.
    std::vector<std::pair<std::uint32_t, Chunk>> segments;
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      for (auto& rank : by_rank) {
        if (i < rank.size()) segments.push_back(rank[i]);
      }
    }
    output = make_output(manifest, segments, static_cast<std::uint32_t>(m), 100);
    expected = expected_files(manifest, output);
  }

  TransferResult run(const std::string& out, std::uint64_t limit, int threads,
                     FileSystem* through = nullptr) {
    FileSystem& disk = through != nullptr ? *through : static_cast<FileSystem&>(fs);
    Plan plan(manifest, output);
    std::unique_ptr<Directory> directory = disk.open_directory("/source");
    std::unique_ptr<Stage> stage = Stage::open(disk, out, "abc0", {});
    TransferOptions options;
    options.memory_limit_bytes = limit;
    options.threads = threads;
    TransferResult result = transfer(manifest, *directory, output, plan, disk, *stage, options);
    stage->publish([] {}, [] { return Bytes{}; });
    return result;
  }

  std::vector<Bytes> files(const std::string& out) const {
    std::vector<Bytes> got;
    for (const OutputFile& file : output.files) got.push_back(fs.read_file(out + "/" + file.path));
    return got;
  }
};

}  // namespace

TEST_CASE("a tensor larger than the limit moves within it, row-wise and column-wise") {
  constexpr std::uint64_t kSize = kSanitized ? 4 * kMiB : 8 * kMiB;
  const Shape shape{static_cast<std::int64_t>(kSize) / 4 / 2048, 2048};
  struct Way {
    Cut from, to;
  };
  for (Way way : {Way{rows, rows}, Way{rows, columns}, Way{columns, rows}, Way{columns, columns}}) {
    Case c;
    c.build({shape}, way.from, 4, way.to, 3);
    TransferResult one = c.run("/one", 1 * kMiB, 1);
    TransferResult two = c.run("/two", 2 * kMiB, 2);
    CHECK(same(c.files("/one"), c.expected));
    CHECK(same(c.files("/two"), c.expected));
    CHECK(one.peak_staged_bytes <= 1 * kMiB + 64 * 1024);
    CHECK(two.peak_staged_bytes <= 2 * kMiB + 64 * 1024);
    CHECK(one.bytes_read <= kSize * 105 / 100);
    CHECK(one.proved_bytes == kSize);
  }
}

TEST_CASE("a single row larger than the limit is cut along the inner dims") {
  Case c;
  c.build({Shape{2, 3, 200000}}, rows, 2, columns, 3);
  TransferResult result = c.run("/out", 1 * kMiB, 1);
  CHECK(same(c.files("/out"), c.expected));
  CHECK(result.peak_staged_bytes <= 1 * kMiB + 64 * 1024);
}

TEST_CASE("W larger than the rows, zero-size tensors and scalars") {
  Case c;
  c.build({Shape{3, 5}, Shape{1, 7}}, rows, 2, rows, 8);
  c.run("/out", kMiB, 2);
  CHECK(same(c.files("/out"), c.expected));
}

TEST_CASE("small tensors share reads and writes") {
  Case c;
  c.build(std::vector<Shape>(2000, Shape{32, 32}), rows, 2, rows, 4);
  CountingFileSystem counting(c.fs);
  TransferResult result = c.run("/out", 64 * kMiB, 1, &counting);
  CHECK(same(c.files("/out"), c.expected));
  CHECK(result.proved_bytes == 2000 * 4096);
  CHECK(counting.total().reads < 200);
  CHECK(counting.total().writes < 200);
}

TEST_CASE("a checksum that does not match stops the transfer and names tensor and file") {
  Case c;
  c.build({Shape{64, 64}, Shape{8, 8}}, rows, 2, columns, 2);
  for (std::size_t r = 0; r < c.manifest.records.size(); ++r) {
    Record& record = c.manifest.records[r];
    record.crc32 ^= 0x8000;
    std::string message;
    try {
      c.run("/out", kMiB, 2);
    } catch (const Error& error) {
      CHECK(error.code() == Code::kCorrupt);
      message = error.what();
    }
    CHECK(message.find("tensor \"t") != std::string::npos);
    CHECK(message.find("source_") != std::string::npos);
    CHECK_FALSE(c.fs.stat("/out"));
    record.crc32 ^= 0x8000;
  }
}

namespace {

/// Cancels at the n-th write.
class CancelAtWrite final : public ObservedFileSystem {
 public:
  CancelAtWrite(FileSystem& inner, CancelToken& token, int at)
      : ObservedFileSystem(inner), token_(token), left_(at) {}

 protected:
  void before(const IoEvent& event) const override {
    if (event.op == IoOp::kWrite && left_.fetch_sub(1) == 1) token_.cancel();
  }

 private:
  CancelToken& token_;
  mutable std::atomic<int> left_;
};

}  // namespace

TEST_CASE("what was written before a cancel is taken over by the next run") {
  Case c;
  c.build({Shape{512, 1024}, Shape{300, 700}, Shape{1000, 11}}, rows, 3, rows, 4);
  Plan plan(c.manifest, c.output);
  for (int at = 1; at < 60; at += 4) {
    INFO("cancelled at write " << at);
    CancelToken token;
    CancelAtWrite cancelling(c.fs, token, at);
    TransferOptions options;
    options.memory_limit_bytes = kMiB;
    options.cancel = &token;
    std::string out = "/out" + std::to_string(at);
    std::uint64_t before = 0;
    bool cancelled = false;
    {
      std::unique_ptr<Directory> directory = cancelling.open_directory("/source");
      std::unique_ptr<Stage> stage = Stage::open(cancelling, out, "abc1", {});
      Progress progress;
      options.progress = &progress;
      try {
        transfer(c.manifest, *directory, c.output, plan, cancelling, *stage, options);
        stage->discard();
      } catch (const Error& error) {
        REQUIRE(error.code() == Code::kCancelled);
        cancelled = true;
        before = progress.done_bytes;
        stage->flush_journal();
        stage->keep();
      }
    }
    if (!cancelled) break;
    options.cancel = nullptr;
    options.progress = nullptr;
    std::unique_ptr<Directory> directory = c.fs.open_directory("/source");
    StageOptions resume;
    resume.resume = true;
    std::unique_ptr<Stage> stage = Stage::open(c.fs, out, "abc1", resume);
    TransferResult result = transfer(c.manifest, *directory, c.output, plan, c.fs, *stage, options);
    stage->publish([] {}, [] { return Bytes{}; });
    CHECK(same(c.files(out), c.expected));
    CHECK(result.resumed_bytes * 100 >= before * 95);
    CHECK(result.resumed_bytes + result.bytes_written == c.output.total_bytes());
  }
}

TEST_CASE("a staged piece that changed since is written again, not trusted") {
  Case c;
  c.build({Shape{512, 1024}}, rows, 3, rows, 2);
  Plan plan(c.manifest, c.output);
  CancelToken token;
  CancelAtWrite cancelling(c.fs, token, 5);
  TransferOptions options;
  options.memory_limit_bytes = kMiB;
  options.cancel = &token;
  std::string stage_path;
  {
    std::unique_ptr<Directory> directory = cancelling.open_directory("/source");
    std::unique_ptr<Stage> stage = Stage::open(cancelling, "/out", "abc2", {});
    stage_path = stage->directory();
    CHECK_THROWS_AS(transfer(c.manifest, *directory, c.output, plan, cancelling, *stage, options),
                    Error);
    stage->flush_journal();
    stage->keep();
  }
  Bytes damaged = c.fs.read_file(stage_path + "/out_0");
  damaged[damaged.size() / 4] ^= std::byte{1};
  c.fs.write_file(stage_path + "/out_0", damaged);
  options.cancel = nullptr;
  std::unique_ptr<Directory> directory = c.fs.open_directory("/source");
  StageOptions resume;
  resume.resume = true;
  std::unique_ptr<Stage> stage = Stage::open(c.fs, "/out", "abc2", resume);
  transfer(c.manifest, *directory, c.output, plan, c.fs, *stage, options);
  stage->publish([] {}, [] { return Bytes{}; });
  CHECK(same(c.files("/out"), c.expected));
}

namespace {

/// No file gets its size; slow enough that the other threads wait for the same file meanwhile.
class FullDisk final : public ObservedFileSystem {
 public:
  using ObservedFileSystem::ObservedFileSystem;

 protected:
  void before(const IoEvent& event) const override {
    if (event.op != IoOp::kAllocate) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    fail(Code::kResourceExhausted, "no space left on the test's disk");
  }
};

}  // namespace

TEST_CASE("a full disk found when a file gets its size ends every thread, and leaves nothing") {
  Case c;
  c.build({Shape{1024, 2048}, Shape{1024, 2048}, Shape{1024, 2048}}, rows, 1, rows, 1);
  FullDisk full(c.fs);
  try {
    c.run("/out", 256 * kMiB, 3, &full);
    FAIL("a full disk went unnoticed");
  } catch (const Error& error) {
    CHECK(error.code() == Code::kResourceExhausted);
  }
  CHECK_FALSE(c.fs.stat("/out"));
}

}  // namespace transfer_limits_test

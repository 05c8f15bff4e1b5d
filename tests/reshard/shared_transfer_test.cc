// Several ranks (here threads, each with its own view of one file system) write one output
// together: byte for byte what one process writes, whatever the number of ranks; one rank's failure
// is everybody's.
#include <tessera/base/error.h>
#include <tessera/reshard/executor.h>
#include <tessera/reshard/plan.h>
#include <tessera/storage/checksum.h>
#include <tessera/storage/faulty_file_system.h>
#include <tessera/storage/stage_member.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>
#include <thread>

#include "lib/reshard/shares.h"
#include "tests/support/reshard_scene.h"

namespace shared_transfer_test {

using namespace tessera;
using namespace tessera::test;

namespace {

struct Scene {
  MemoryFileSystem fs;
  Manifest manifest;
  OutputPlan output;
};

/// Large enough that borders fall inside tensors, at whole pages.
void fill_large(Scene& scene, std::uint64_t seed) {
  constexpr DType kDTypes[] = {DType::kUInt8, DType::kBFloat16, DType::kFloat32,
                               DType::kComplex128};
  std::mt19937_64 random(seed);
  SceneBuilder builder(scene.fs, "/source", seed);
  std::vector<std::pair<std::uint32_t, Chunk>> segments;
  const auto files = static_cast<std::uint32_t>(1 + random() % 4);
  for (std::uint64_t t = 0; t < 1 + random() % 4; ++t) {
    const auto rows = static_cast<std::int64_t>(1 + random() % 40);
    const auto columns = static_cast<std::int64_t>(1 + random() % 300);
    const TensorSpec spec{kDTypes[random() % 4], Shape{rows, columns}};
    const std::uint32_t number =
        builder.add_tensor("t" + std::to_string(t), spec, random_tiling(random, spec.shape), files);
    for (const Chunk& chunk : random_tiling(random, spec.shape))
      segments.emplace_back(number, chunk);
  }
  scene.manifest = builder.finish();
  scene.output = make_output(scene.manifest, segments, static_cast<std::uint32_t>(1 + random() % 3),
                             random() % 400);
}

struct Told {
  std::vector<TransferResult> results;
  std::vector<Status> failures;  // by rank
};

/// `fs_of`: the file system as a rank sees it.
Told run_ranks(Scene& scene, int size, const std::function<FileSystem&(int)>& fs_of,
               const std::string& out, Progress* progress = nullptr,
               const CancelToken* cancel = nullptr) {
  const Plan plan(scene.manifest, scene.output);
  const std::unique_ptr<Stage> stage = Stage::open(scene.fs, out, "0123456789abcdef", {});
  auto ranks = thread_ranks(size);
  Told told;
  told.results.resize(ranks.size());
  told.failures.resize(ranks.size());
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    threads.emplace_back([&, r, group = std::move(ranks[r])] {
      try {
        FileSystem& fs = fs_of(static_cast<int>(r));
        std::unique_ptr<Directory> directory;
        std::unique_ptr<Stage> member;
        group->together([&] {
          directory = fs.open_directory("/source");
          member = join_stage(fs, stage->directory(), out);
        });
        TransferOptions options;
        options.threads = static_cast<int>(1 + r % 2);
        options.memory_limit_bytes = std::uint64_t{1} << (16 + r);
        options.progress = r == 0 ? progress : nullptr;
        options.cancel = r + 1 == told.results.size() ? cancel : nullptr;
        told.results[r] =
            transfer(scene.manifest, *directory, scene.output, plan, fs, *member, options, *group);
      } catch (...) {
        told.failures[r] = current_exception_status();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const bool whole = std::ranges::all_of(told.failures, [](const Status& s) { return s.ok(); });
  if (whole) stage->publish([] {}, [] { return Bytes{}; });
  return told;
}

std::vector<std::uint32_t> crcs_of(ByteView bytes) {
  std::vector<std::uint32_t> crcs;
  for (; !bytes.empty(); bytes = bytes.subspan(std::min<std::size_t>(kMiB, bytes.size())))
    crcs.push_back(crc32(0, bytes.first(std::min<std::size_t>(kMiB, bytes.size()))));
  return crcs;
}

}  // namespace

TEST_CASE("ranks together write what one process writes") {
  int cut = 0, shared = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    Scene scene;
    fill_large(scene, seed);
    scene.output.check(scene.manifest);
    const std::vector<Bytes> expected = expected_files(scene.manifest, scene.output);
    const int size = static_cast<int>(2 + seed % 5);
    CAPTURE(seed, size);
    const Shares shares = make_shares(scene.manifest, scene.output, size);
    shares.output.check(scene.manifest);
    cut += shares.output.segments.size() > scene.output.segments.size();
    for (const Shares::Writers& writers : shares.writers) shared += writers.shared();

    Progress progress;
    const Told told = run_ranks(
        scene, size, [&](int) -> FileSystem& { return scene.fs; }, "/out", &progress);
    for (const Status& failure : told.failures)
      REQUIRE(failure.to_string() == Status{}.to_string());
    const TransferResult& all = told.results[0];
    for (std::size_t f = 0; f < expected.size(); ++f) {
      REQUIRE(scene.fs.read_file("/out/" + scene.output.files[f].path) == expected[f]);
      REQUIRE(all.crc32_per_mib[f] == crcs_of(expected[f]));
    }
    CHECK(all.bytes_written == scene.output.total_bytes());
    CHECK(progress.done_bytes == scene.output.total_bytes());
    CHECK(progress.total_bytes == scene.output.total_bytes());
  }
  CHECK(cut > 20);     // the scenes are such that tensors are cut,
  CHECK(shared > 40);  // and files have several writers
}

TEST_CASE("shares are alike in bytes and the same every time") {
  Scene scene;
  SceneBuilder builder(scene.fs, "/source", 1);
  std::vector<std::pair<std::uint32_t, Chunk>> segments;
  for (int t = 0; t < 12; ++t) {
    const TensorSpec spec{DType::kFloat32, Shape{64 + 16 * t, 256}};
    const Chunk whole = Chunk::whole_of(Box::whole(spec.shape));
    segments.emplace_back(builder.add_tensor("t" + std::to_string(t), spec, {whole}, 3), whole);
  }
  scene.manifest = builder.finish();
  scene.output = make_output(scene.manifest, segments, 5, 100);
  for (int parts = 1; parts <= 16; ++parts) {
    const Shares shares = make_shares(scene.manifest, scene.output, parts);
    const Shares again = make_shares(scene.manifest, scene.output, parts);
    CHECK(shares.borders == again.borders);
    REQUIRE(shares.borders.size() == static_cast<std::size_t>(parts) + 1);
    const double mean = static_cast<double>(scene.output.total_bytes()) / parts;
    for (int i = 0; i < parts; ++i) {
      double bytes = 0;
      for (std::uint64_t s = shares.borders[i]; s < shares.borders[i + 1]; ++s)
        bytes += static_cast<double>(shares.output.segments[s].length);
      CAPTURE(parts, i, bytes, mean);
      CHECK(bytes <= mean * 1.13 + 2 * 4096);  // a sixteenth at each border, and a page
    }
  }
}

TEST_CASE("a failure on one rank ends all of them with that failure") {
  int failed = 0;
  for (const std::uint64_t at : {1u, 2u, 3u, 5u, 8u, 13u, 21u, 34u, 55u}) {
    for (const int error : {EIO, ENOSPC}) {
      Scene scene;
      fill_large(scene, 7);
      Fault fault;
      fault.at = at;
      fault.error = error;
      FaultyFileSystem faulty(scene.fs, fault);
      const Told told = run_ranks(
          scene, 4,
          [&](int r) -> FileSystem& {
            return r == 2 ? static_cast<FileSystem&>(faulty) : scene.fs;
          },
          "/out");
      if (faulty.faults() == 0) continue;
      ++failed;
      CAPTURE(at, error, faulty.first_fault());
      for (const Status& failure : told.failures) {
        CHECK(failure.code == (error == EIO ? Code::kIo : Code::kResourceExhausted));
        CHECK(failure.context.rank == 2);
      }
      CHECK_FALSE(scene.fs.stat("/out").has_value());
    }
  }
  CHECK(failed >= 6);
}

TEST_CASE("a cancel on one rank stops all of them") {
  Scene scene;
  fill_large(scene, 11);
  CancelToken cancel;
  cancel.cancel();
  const Told told = run_ranks(
      scene, 3, [&](int) -> FileSystem& { return scene.fs; }, "/out", nullptr, &cancel);
  for (const Status& failure : told.failures) CHECK(failure.code == Code::kCancelled);
}

TEST_CASE("damage in a record that several ranks read parts of is found") {
  // By columns: ranks meet within a row of the output, and both read that row of a chunk.
  const bool by_columns = GENERATE(false, true);
  Scene scene;
  SceneBuilder builder(scene.fs, "/source", 1);
  const TensorSpec spec{DType::kFloat32, Shape{64, 300}};
  const Chunk whole = Chunk::whole_of(Box::whole(spec.shape));
  std::vector<Chunk> stored = {whole};
  if (by_columns)
    stored = {Chunk::whole_of({{0, 0}, {64, 100}}), Chunk::whole_of({{0, 100}, {64, 200}})};
  builder.add_tensor("t", spec, stored, 1);
  scene.manifest = builder.finish();
  scene.output = make_output(scene.manifest, {{0, whole}}, 1, 0);
  REQUIRE(make_shares(scene.manifest, scene.output, 4).writers[0].shared());
  const std::string path = "/source/" + scene.manifest.files[0].path;
  const Bytes content = scene.fs.read_file(path);
  for (std::size_t chunk = 0; chunk < stored.size(); ++chunk) {
    const Source& source = scene.manifest.chunks.source(chunk);
    for (std::uint64_t at = 0; at < source.length; at += source.length / 16 - 1) {
      INFO("by columns " << by_columns << ", chunk " << chunk << " at " << at);
      Bytes turned = content;
      turned[source.offset + at] ^= std::byte{4};
      scene.fs.write_file(path, turned);
      const Told told = run_ranks(
          scene, 4, [&](int) -> FileSystem& { return scene.fs; }, "/out");
      for (const Status& failure : told.failures) {
        CHECK(failure.code == Code::kCorrupt);
        CHECK(failure.message.find("checksum") != std::string::npos);
      }
    }
  }
}

}  // namespace shared_transfer_test

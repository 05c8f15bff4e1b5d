// Where a save goes: to where its caller stood, and never to what only looks like a path.
#include <tessera/base/error.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <future>
#include <memory>

#include "tests/support/live_saved.h"

namespace live_place_test {

using namespace tessera;
using namespace tessera::test;
using Catch::Matchers::Contains;

namespace {

/// Two folders to stand in; the process is put back where it was.
struct Folders {
  Folders() {
    for (const char* name : {"/here", "/there"}) std::filesystem::create_directories(root + name);
  }
  ~Folders() {
    std::filesystem::current_path(before);
    std::filesystem::remove_all(root);
  }
  const std::filesystem::path before = std::filesystem::current_path();
  const std::string root = std::filesystem::temp_directory_path().string() + "/live_place_test." +
                           std::to_string(::getpid());
};

/// One rank, whose background does nothing before `gate` is open.
class GatedRank final : public RankGroup {
 public:
  GatedRank(std::shared_future<void> gate, bool waits) : gate_(std::move(gate)), waits_(waits) {}
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::vector<std::vector<std::byte>> all_gather(std::span<const std::byte> bytes) override {
    if (waits_) gate_.wait();
    return {{bytes.begin(), bytes.end()}};
  }
  std::unique_ptr<RankGroup> duplicate() override {
    return std::make_unique<GatedRank>(gate_, true);
  }

 private:
  std::shared_future<void> gate_;
  bool waits_;
};

/// What a save to `path` is refused with, hint and all; nothing is written.
Status refusal(MemoryFileSystem& fs, const std::string& path, bool force = false) {
  const auto before = fs.contents();
  const auto ranks = single_rank();
  SaveOptions options = saving(fs);
  options.force = force;
  try {
    LiveState state;
    state.add_value("epoch", Value::integer(1));
    save(path, state, *ranks, options);
  } catch (const Error& error) {
    CHECK(fs.contents() == before);
    return error.status();
  }
  FAIL("saved to " << path);
  return {};
}

}  // namespace

TEST_CASE("a save in the background goes to where its caller stood") {
  const Folders folders;
  std::promise<void> gate;
  GatedRank ranks(gate.get_future().share(), false);
  float w[2] = {1, 2};
  LiveState state;
  state.add("w", {DType::kFloat32, {2}, {}, w});
  std::filesystem::current_path(folders.root + "/here");
  PendingSave pending = save_async("run/a", state, ranks);
  std::filesystem::current_path(folders.root + "/there");
  gate.set_value();
  pending.wait();
  CHECK(std::filesystem::exists(folders.root + "/here/run/a/.metadata"));
  CHECK_FALSE(std::filesystem::exists(folders.root + "/there/run"));
}

TEST_CASE("a slash at the end of a path, or a path from the working directory, is the same place") {
  for (const char* path : {"/run/a/", "/run/a//", "run/a", "./run/a/"}) {
    MemoryFileSystem fs;
    const auto ranks = single_rank();
    LiveState state;
    state.add_value("epoch", Value::integer(1));
    save(path, state, *ranks, saving(fs));
    CHECK(fs.stat("/run/a/.metadata"));
  }
}

TEST_CASE("a URL is no place to save to") {
  MemoryFileSystem fs;
  for (const char* url : {"s3://bucket/run", "file://run", "/run/s3://bucket"}) {
    const Status status = refusal(fs, url);
    CHECK(status.code == Code::kUnsupported);
    CHECK_THAT(status.message, Contains(url) && Contains("is a URL"));
  }
}

TEST_CASE("what a save refuses it says in its own words, not in those of the commands") {
  MemoryFileSystem fs;
  fs.write_file("/run/notes/todo.txt", as_bytes("buy milk"));
  fs.write_file("/run/file", as_bytes("x"));
  CHECK_THAT(refusal(fs, "").message, Contains("no path"));
  for (const Status& status :
       {refusal(fs, "/run/notes"), refusal(fs, "/run/notes", true), refusal(fs, "/run/file", true)})
    for (const std::string& text : {status.message, status.hint})
      CHECK_THAT(text, !Contains("--force") && !Contains("DST"));
  CHECK_THAT(refusal(fs, "/run/notes", true).message, Contains("SaveOptions::force"));
}

}  // namespace live_place_test

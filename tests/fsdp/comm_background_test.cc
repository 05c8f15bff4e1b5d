// A save in the background beside training: its agreements go through a group of their own, while
// the ranks keep reducing.
#include <stdlib.h>
#include <tessera/live/load.h>
#include <tessera/live/save.h>
#include <tessera/storage/memory_file_system.h>
#include <tessera/storage/observed_file_system.h>
#include <torch/torch.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <string>
#include <thread>

#include "tests/fsdp/comm_support.h"

namespace comm_background_test {

using namespace tessera;
using namespace tessera::fsdp;
using namespace tessera::fsdp::testing;

namespace {

class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "tessera-comm-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder");
    path = name;
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string path;
};

LiveState rows_of(int rank, int world, at::Tensor& rows) {
  LiveState state;
  state.add_piece("w", {DType::kFloat32, {world * 100, 8}},
                  {Chunk::whole_of({{rank * 100, 0}, {100, 8}}), rows.data_ptr(), {}});
  return state;
}

/// A disk on which the first operation of a kind takes longer than a collective of training may.
class SlowDisk final : public ObservedFileSystem {
 public:
  SlowDisk(FileSystem& inner, IoOp slow) : ObservedFileSystem(inner), slow_(slow) {}
  static constexpr std::chrono::milliseconds kLong{4000};

 protected:
  void before(const IoEvent& event) const override {
    if (event.op == slow_ && !slept_.exchange(true)) std::this_thread::sleep_for(kLong);
  }

 private:
  const IoOp slow_;
  mutable std::atomic<bool> slept_ = false;
};

}  // namespace

TEST_CASE("saves in the background go on while the ranks reduce, and hold what was there") {
  const Folder folder;
  const auto thrown = thrown_by_ranks(3, [&](World& world) {
    at::Tensor rows = at::zeros({100, 8});
    for (int n = 1; n <= 5; ++n) {
      const std::string path = folder.path + "/step_" + std::to_string(n);
      rows.fill_(n * 10 + world.rank());
      PendingSave pending =
          save_async(path, rows_of(world.rank(), world.size(), rows), world.ranks());
      rows.zero_();
      for (int step = 0; step < 20; ++step) {
        at::Tensor ones = at::ones({300});
        world.communicator()->all_reduce(ones, Reduce::kSum, {"layer", CommPhase::kForward});
        require(ones[0].item<float>() == 3.0f, "wrong sum");
      }
      if (n % 2 == 0) pending.wait();  // else the next save does
    }
    save_async(folder.path + "/last", rows_of(world.rank(), world.size(), rows), world.ranks())
        .wait();
    for (int n = 1; n <= 5; ++n) {
      load(folder.path + "/step_" + std::to_string(n), rows_of(world.rank(), world.size(), rows),
           world.ranks());
      require(rows.eq(n * 10 + world.rank()).all().item<bool>(), "another step's rows");
    }
  });
  for (const std::string& message : thrown) CHECK(message == "");
}

TEST_CASE("a world that ends waits for its save") {
  const Folder folder;
  const auto thrown = thrown_by_ranks(2, [&](World& world) {
    at::Tensor rows = at::ones({100, 8});
    save_async(folder.path + "/a", rows_of(world.rank(), world.size(), rows), world.ranks());
  });
  for (const std::string& message : thrown) CHECK(message == "");
  at::Tensor whole = at::zeros({200, 8});
  LiveState state;
  state.add("w", {DType::kFloat32, {200, 8}, {}, whole.data_ptr()});
  load(folder.path + "/a", state, *single_rank());
  CHECK(whole.eq(1).all().item<bool>());
}

TEST_CASE("ranks wait for one whose disk is slow, longer than for a collective of training") {
  struct Case {
    IoOp op;
    int rank;
    bool in_background;
  };
  const auto slow = GENERATE(Case{IoOp::kWrite, 1, false}, Case{IoOp::kRemoveTree, 0, true},
                             Case{IoOp::kRead, 1, false});
  const char* const backend = GENERATE("threads", "gloo");
  CAPTURE(backend, slow.rank, slow.in_background);
  WorldOptions world_options;
  world_options.backend = backend;
  world_options.timeout = SlowDisk::kLong * 3 / 4;
  MemoryFileSystem fs;
  fs.make_directories("/run");
  const auto thrown = thrown_by_ranks(
      2,
      [&](World& world) {
        at::Tensor rows = at::zeros({100, 8});
        SlowDisk disk(fs, slow.op);
        SaveOptions saving;
        saving.file_system = &fs;
        save("/run/a", rows_of(world.rank(), 2, rows), world.ranks(), saving);
        saving.file_system = world.rank() == slow.rank ? static_cast<FileSystem*>(&disk) : &fs;
        saving.force = saving.update_latest = true;  // what was there is removed
        rows.fill_(7 + world.rank());
        if (slow.in_background)
          save_async("/run/a", rows_of(world.rank(), 2, rows), world.ranks(), saving).wait();
        else
          save("/run/a", rows_of(world.rank(), 2, rows), world.ranks(), saving);
        LoadPolicy loading;
        loading.file_system = saving.file_system;
        rows.zero_();
        load("/run/latest", rows_of(world.rank(), 2, rows), world.ranks(), loading);
        require(rows.eq(7 + world.rank()).all().item<bool>(), "other rows");
      },
      world_options);
  for (const std::string& message : thrown) CHECK(message == "");
}

TEST_CASE("ranks wait for one that copies its state for longer than joining a group may take") {
  WorldOptions world_options;
  world_options.backend = "gloo";
  world_options.timeout = std::chrono::seconds(3);
  MemoryFileSystem fs;
  fs.make_directories("/run");
  const auto thrown = thrown_by_ranks(
      3,
      [&](World& world) {
        at::Tensor rows = at::full({100, 8}, 1.0 + world.rank());
        SaveOptions saving;
        saving.file_system = &fs;
        // Late to the first call of all, and to the group of saves in the background.
        if (world.rank() == 1) std::this_thread::sleep_for(SlowDisk::kLong);
        save("/run/a", rows_of(world.rank(), 3, rows), world.ranks(), saving);
        if (world.rank() == 2) std::this_thread::sleep_for(SlowDisk::kLong);
        world.ranks().duplicate()->barrier();
        save_async("/run/b", rows_of(world.rank(), 3, rows), world.ranks(), saving).wait();
      },
      world_options);
  for (const std::string& message : thrown) CHECK(message == "");
}

TEST_CASE("a rank that stays away from a save is told after the time that saves have") {
  const char* const backend = GENERATE("threads", "gloo");
  CAPTURE(backend);
  WorldOptions world_options;
  world_options.backend = backend;
  world_options.state_timeout = std::chrono::seconds(2);
  const auto thrown = thrown_by_ranks(
      2,
      [&](World& world) {
        world.ranks().barrier();
        if (world.rank() == 0) world.ranks().barrier();
        std::this_thread::sleep_for(std::chrono::seconds(3));
      },
      world_options);
  CHECK(thrown[0].find("timeout") != std::string::npos);
  CHECK(thrown[1] == "");
}

TEST_CASE("a save in the background follows a reset of the world") {
  const char* const backend = GENERATE("threads", "gloo");
  const bool in_flight = GENERATE(false, true);
  CAPTURE(backend, in_flight);
  WorldOptions world_options;
  world_options.backend = backend;
  MemoryFileSystem fs;
  fs.make_directories("/run");
  const auto thrown = thrown_by_ranks(
      3,
      [&](World& world) {
        at::Tensor rows = at::zeros({100, 8});
        SaveOptions saving;
        saving.file_system = &fs;
        for (int n = 1; n <= 3; ++n) {
          rows.fill_(n * 10 + world.rank());
          PendingSave pending = save_async("/run/step_" + std::to_string(n),
                                           rows_of(world.rank(), 3, rows), world.ranks(), saving);
          if (!in_flight) pending.wait();
          world.reset();
          try {
            pending.wait();  // cut off where it was in flight, or whole
          } catch (const Error&) {
          }
        }
        rows.fill_(world.rank() + 1);
        save_async("/run/last", rows_of(world.rank(), 3, rows), world.ranks(), saving).wait();
        LoadPolicy loading;
        loading.file_system = &fs;
        for (int n = 1; n <= 3 && !in_flight; ++n) {
          load("/run/step_" + std::to_string(n), rows_of(world.rank(), 3, rows), world.ranks(),
               loading);
          require(rows.eq(n * 10 + world.rank()).all().item<bool>(), "another step's rows");
        }
        load("/run/last", rows_of(world.rank(), 3, rows), world.ranks(), loading);
        require(rows.eq(world.rank() + 1).all().item<bool>(), "other rows");
      },
      world_options);
  for (const std::string& message : thrown) CHECK(message == "");
}

}  // namespace comm_background_test

// A save in the background beside training: its agreements go through a group of their own, while
// the ranks keep reducing.
#include <stdlib.h>
#include <tessera/live/load.h>
#include <tessera/live/save.h>
#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <string>

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

}  // namespace comm_background_test

// The messages that docs/live_state.md shows are those that real saves and loads give, all of them
// and no others.
#include <tessera/base/error.h>
#include <tessera/live/load.h>
#include <tessera/live/save.h>
#include <tessera/storage/memory_file_system.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <set>

#include "tests/support/live_job.h"

namespace live_messages_test {

using namespace tessera;
using namespace tessera::test;

namespace {

constexpr const char* kPlace = "/run/a";
float memory[64];

/// The lines of the page that are messages, in its order.
std::vector<std::string> shown() {
  std::ifstream page(std::string(TESSERA_SOURCE_DIR) + "/docs/live_state.md");
  REQUIRE(page.good());
  std::vector<std::string> lines;
  bool here = false;
  for (std::string line; std::getline(page, line);) {
    if (line.starts_with("#")) here = line == "## Messages";
    if (here && line.starts_with("    ")) lines.push_back(line.substr(4));
  }
  return lines;
}

/// What every rank throws, with the place as the page names it.
std::string thrown_by(int world, const std::function<void(RankGroup&)>& body,
                      std::size_t messages = 1) {
  const auto thrown = on_ranks(world, body);
  CHECK(std::set<std::string>(thrown.begin(), thrown.end()).size() == messages);
  std::string message = thrown[0];
  const std::size_t at = message.rfind(kPlace);
  REQUIRE(at != std::string::npos);
  return message.erase(at, 1);
}

class Scene {
 public:
  SaveOptions saving() {
    SaveOptions options;
    options.file_system = &fs_;
    options.force = true;
    return options;
  }
  std::string save_of(int world, const std::function<void(LiveState&, int rank)>& build) {
    return thrown_by(world, [&](RankGroup& ranks) {
      LiveState state;
      build(state, ranks.rank());
      save(kPlace, state, ranks, saving());
    });
  }
  /// Of one rank; what is stored, and what is asked for.
  std::string load_of(const std::function<void(LiveState&)>& stored,
                      const std::function<void(LiveState&)>& asked) {
    return thrown_by(1, [&](RankGroup& ranks) {
      LiveState from, to;
      stored(from);
      save(kPlace, from, ranks, saving());
      asked(to);
      LoadPolicy policy;
      policy.file_system = &fs_;
      load(kPlace, to, ranks, policy);
    });
  }
  /// Of two ranks, each from a place of its own, which each names.
  std::string load_of_two() {
    return thrown_by(
        2,
        [&](RankGroup& ranks) {
          const std::string other = "/run/b";
          for (const std::string& place : {std::string(kPlace), other}) {
            LiveState state;
            state.add_value("step", Value::integer(place == other));
            save(place, state, ranks, saving());
          }
          LiveState state;
          state.add_value("step", Value::integer(0));
          LoadPolicy policy;
          policy.file_system = &fs_;
          load(ranks.rank() == 0 ? kPlace : other, state, ranks, policy);
        },
        2);
  }

 private:
  MemoryFileSystem fs_;
};

const TensorSpec kSpec{DType::kFloat32, {8, 3}};

LivePiece rows(std::int64_t begin, std::int64_t count) {
  return {Chunk::whole_of({{begin, 0}, {count, 3}}), memory, {}};
}

Path weight_of(const char* unit) { return {key_item("model"), key_item(unit), key_item("weight")}; }

}  // namespace

TEST_CASE("the documented messages of saves and loads are the real ones") {
  Scene scene;
  std::vector<std::string> real;
  real.push_back(scene.save_of(2, [](LiveState& state, int rank) {
    state.add_piece("w", kSpec, rows(rank * 4, rank == 0 ? 4 : 3));
  }));
  real.push_back(scene.save_of(3, [](LiveState& state, int rank) {
    if (rank > 0) state.add_piece("w", kSpec, rows(rank == 1 ? 0 : 4, rank == 1 ? 5 : 4));
  }));
  real.push_back(
      scene.save_of(2, [](LiveState& state, int) { state.add_piece("w", kSpec, rows(0, 8)); }));
  real.push_back(scene.save_of(3, [](LiveState& state, int rank) {
    const DType dtype = rank == 2 ? DType::kBFloat16 : DType::kFloat32;
    state.add("w", {dtype, {8, 3}, {}, memory});
  }));
  real.push_back(scene.save_of(2, [](LiveState& state, int rank) {
    state.add_value("lr", Value::real(rank == 0 ? 0.25 : 0.5));
  }));
  real.push_back(thrown_by(2, [&](RankGroup& ranks) {
    LiveState state;
    state.add(weight_of("a"), {DType::kFloat32, {8, 3}, {}, memory});
    const bool forgets = ranks.rank() == 1;
    state.changed = [=] { return std::string(forgets ? "model.a.weight" : ""); };
    SaveOptions options = scene.saving();
    options.snapshot = SnapshotTiming::kLazy;
    save_async(kPlace, state, ranks, options).wait();
  }));
  real.push_back(scene.save_of(
      1, [](LiveState& state, int) { state.add_value("data", Value::string("/data/caf\xe9")); }));
  real.push_back(thrown_by(2, [&](RankGroup& ranks) {
    LiveState state;
    if (ranks.rank() == 0) {
      save_async(kPlace, state, ranks, scene.saving()).wait();
    } else {
      save(kPlace, state, ranks, scene.saving());
    }
  }));
  real.push_back(scene.load_of_two());
  real.push_back(scene.load_of(
      [](LiveState& state) {
        state.add("b", {DType::kFloat32, {2, 2}, {}, memory});
      },
      [](LiveState& state) {
        state.add("b", {DType::kFloat32, {4}, {}, memory});
      }));
  real.push_back(scene.load_of(
      [](LiveState& state) {
        state.add({key_item("model"), key_item("a")}, {DType::kFloat32, {4}, {}, memory});
      },
      [](LiveState& state) {
        for (const char* name : {"a", "c"})
          state.add({key_item("model"), key_item(name)}, {DType::kFloat32, {4}, {}, memory});
      }));
  std::int64_t big = (1 << 24) + 1;
  real.push_back(scene.load_of(
      [&](LiveState& state) {
        state.add("step", {DType::kInt64, {}, {}, &big});
      },
      [](LiveState& state) {
        state.add("step", {DType::kFloat32, {}, {}, memory});
      }));
  CHECK(real == shown());
}

}  // namespace live_messages_test

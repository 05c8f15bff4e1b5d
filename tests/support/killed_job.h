#pragma once
// A job of processes for tests that kill one of them: one tensor in equal rows, a folder of its
// own.
#include <tessera/live/load.h>
#include <tessera/live/save.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <string>
#include <vector>

namespace tessera::test {

/// Fresh, removed at the end.
class KilledFolder {
 public:
  KilledFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "tessera-killed-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~KilledFolder() { std::filesystem::remove_all(path_); }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

/// One rank's part.
struct KilledRows {
  static constexpr std::int64_t kNumel = 5000;
  KilledRows(int rank_, int world_, float value)
      : rank(rank_), world(world_), memory(kNumel, value) {}
  LiveState state() {
    LiveState made;
    made.add_piece("w", {DType::kFloat32, {world * kNumel}},
                   {Chunk::whole_of({{rank * kNumel}, {kNumel}}), memory.data(), {}});
    return made;
  }
  bool is(float value) const {
    return std::ranges::all_of(memory, [&](float x) { return x == value; });
  }
  int rank, world;
  std::vector<float> memory;
};

inline SaveOptions replacing(FileSystem* fs) {
  SaveOptions options;
  options.file_system = fs;
  options.force = true;
  return options;
}

/// The value all of the checkpoint of `world` ranks has; -1 when it is a mix.
inline float content_of(const std::string& path, int world) {
  KilledRows all(0, 1, 0);
  all.memory.resize(static_cast<std::size_t>(world * KilledRows::kNumel));
  LiveState state;
  state.add("w", {DType::kFloat32, {world * KilledRows::kNumel}, {}, all.memory.data()});
  const auto ranks = single_rank();
  load(path, state, *ranks);
  return all.is(all.memory[0]) ? all.memory[0] : -1;
}

}  // namespace tessera::test

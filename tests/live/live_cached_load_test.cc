// Loads of files that lie in the page cache, as after a save on the same machine.
#include <tessera/base/error.h>
#include <tessera/live/load.h>
#include <tessera/live/save.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>

#include "tests/support/run_command.h"

namespace live_cached_load_test {

using namespace tessera;
using tessera::testing::TemporaryFolder;

namespace {

/// Long enough that it is read straight into its place.
constexpr std::int64_t kRows = 300, kColumns = 1000;

LiveState state_of(std::vector<float>& memory) {
  LiveState state;
  state.add("w", {DType::kFloat32, {kRows, kColumns}, {}, memory.data()});
  return state;
}

}  // namespace

TEST_CASE("files in the page cache are loaded in every way of keeping the state safe") {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/a";
  std::vector<float> saved(kRows * kColumns);
  std::iota(saved.begin(), saved.end(), 1.0F);
  const auto ranks = single_rank();
  save(path, state_of(saved), *ranks, {});
  for (const auto& file : std::filesystem::directory_iterator(path)) {
    std::ifstream in(file.path(), std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(in)), {});
    REQUIRE(bytes.size() == file.file_size());
  }
  for (const auto safety : {LoadSafety::kAside, LoadSafety::kReadTwice, LoadSafety::kInPlace}) {
    INFO("safety " << static_cast<int>(safety));
    std::vector<float> loaded(saved.size(), -1);
    LoadPolicy policy;
    policy.safety = safety;
    const LoadResult result = load(path, state_of(loaded), *ranks, policy);
    CHECK(result.safety == safety);
    CHECK(loaded == saved);
  }
}

}  // namespace live_cached_load_test

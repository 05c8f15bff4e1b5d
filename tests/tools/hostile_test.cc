// Every hostile file: verify, hash and convert end with an allowed status in two seconds, and leave
// nothing behind.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <set>

#include "tests/support/run_command.h"
#include "tests/support/sanitized.h"

namespace hostile_test {

using namespace tessera::testing;

namespace {

namespace fs = std::filesystem;

constexpr double kMostSeconds = kSanitized ? 20 : 2;

/// Rows of the README that allow listing or finishing.
std::set<std::string> allowed_to_finish() {
  std::set<std::string> names;
  std::ifstream stream(sample("hostile/README.md"));
  for (std::string line; std::getline(stream, line);) {
    if (!line.starts_with("| `")) continue;
    const bool may = line.find("or list") != std::string::npos ||
                     line.find("finish quickly or") != std::string::npos ||
                     line.find("stays readable") != std::string::npos ||
                     line.find("honour a limit") != std::string::npos;
    std::string name = line.substr(3, line.find('`', 3) - 3);
    if (name.ends_with("/")) name.pop_back();
    if (may) names.insert(name);
  }
  return names;
}

std::vector<fs::path> hostile_files() {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(sample("hostile"))) {
    const std::string name = entry.path().filename().string();
    if (name != "README.md" && name != "generate") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::set<std::string> markers() {
  std::set<std::string> found;
  for (const fs::path& folder : {fs::temp_directory_path(), fs::current_path()}) {
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(folder, error)) {
      if (entry.path().filename().string().find("ckpt_hostile_marker") != std::string::npos)
        found.insert(entry.path());
    }
  }
  return found;
}

}  // namespace

TEST_CASE("hostile files are refused cleanly by verify, hash and convert") {
  const std::set<std::string> may = allowed_to_finish();
  REQUIRE(may.size() >= 3);
  const std::set<std::string> before = markers();
  const std::set<int> refusals = {1, 3, 4, 5, 6};
  int runs = 0;
  for (const fs::path& file : hostile_files()) {
    const std::string name = file.filename().string();
    if (name.starts_with("h5_") && !fs::exists(built("tessera-hdf5"))) {
      fmt::print("skipped {}: HDF5 is not part of this build\n", name);
      continue;
    }
    const TemporaryFolder t;
    const std::vector<std::vector<std::string>> commands = {
        {built("ckpt-inspect"), "verify", file},
        {built("ckpt-inspect"), "hash", file},
        {built("ckpt-convert"), file, t / "o", "--to", "safetensors"}};
    for (const auto& words : commands) {
      const CommandResult result = run_command(words);
      ++runs;
      INFO(words[0] << " " << words[1] << " " << name << ": exit " << result.exit << ", "
                    << result.seconds << " s, " << result.err);
      CHECK((refusals.count(result.exit) || (result.exit == 0 && may.count(name))));
      CHECK(result.seconds < kMostSeconds);
      CHECK_FALSE((result.out + result.err).empty());
      if (result.exit != 0) CHECK(t.names().empty());
    }
  }
  CHECK(runs >= 100);
  CHECK(markers() == before);
}

}  // namespace hostile_test

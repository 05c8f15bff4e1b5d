// Comments, messages and names use one word per idea: report, print, send or throw, never "tell";
// and a doc comment is a sentence or a noun phrase, not "Of the ranks, those ...".
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <regex>
#include <string>
#include <vector>

namespace plain_english_test {

namespace fs = std::filesystem;

namespace {

std::vector<std::string> lines_of(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

/// "file:line: text" of every source line under include/, lib/, tools/, capi/ and fsdp_core/ that matches.
std::vector<std::string> matching(const std::string& pattern, std::size_t& files) {
  const std::regex regex(pattern);
  std::vector<std::string> found;
  for (const char* tree : {"include", "lib", "tools", "capi", "fsdp_core"})
    for (const auto& entry :
         fs::recursive_directory_iterator(fs::path(TESSERA_SOURCE_DIR) / tree)) {
      const std::string extension = entry.path().extension().string();
      if (extension != ".cc" && extension != ".h") continue;
      ++files;
      const std::vector<std::string> lines = lines_of(entry.path());
      for (std::size_t i = 0; i < lines.size(); ++i)
        if (std::regex_search(lines[i], regex))
          found.push_back(entry.path().string() + ":" + std::to_string(i + 1) + ": " + lines[i]);
    }
  return found;
}

void check_none(const std::string& pattern) {
  std::size_t files = 0;
  const std::vector<std::string> found = matching(pattern, files);
  for (const std::string& line : found) UNSCOPED_INFO(line);
  CHECK(found.empty());
  CHECK(files > 850);
}

}  // namespace

TEST_CASE("no source says tell where it means report, print, send or throw", "[text]") {
  check_none("(^|[^A-Za-z])([Tt]ell|[Tt]ells|[Tt]old|[Tt]elling)([^A-Za-z]|$)");
}

TEST_CASE("no doc comment begins with Of", "[text]") { check_none("^\\s*/// Of "); }

}  // namespace plain_english_test

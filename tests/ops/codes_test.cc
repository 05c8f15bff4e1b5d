// The pages of codes list every code that the sources emit, once, and no other.
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <string>

namespace codes_test {

namespace {

namespace fs = std::filesystem;

std::string text_of(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

/// Matches of group 1, in order.
std::multiset<std::string> matches(const std::string& text, const std::string& pattern) {
  const std::regex regex(pattern);
  std::multiset<std::string> found;
  for (std::sregex_iterator it(text.begin(), text.end(), regex), end; it != end; ++it)
    found.insert((*it)[1]);
  return found;
}

std::set<std::string> emitted(const std::string& family) {
  std::set<std::string> codes;
  for (const char* tree : {"lib", "include"}) {
    for (const auto& entry :
         fs::recursive_directory_iterator(fs::path(TESSERA_SOURCE_DIR) / tree)) {
      const std::string extension = entry.path().extension().string();
      if (extension != ".cc" && extension != ".h") continue;
      const auto found = matches(text_of(entry.path()), "\"(" + family + "\\d{3})\"");
      codes.insert(found.begin(), found.end());
    }
  }
  return codes;
}

void check_page(const std::string& page, const std::string& family) {
  const auto rows = matches(text_of(fs::path(TESSERA_SOURCE_DIR) / "docs" / page),
                            "\\| (" + family + "\\d{3}) \\|");
  const std::set<std::string> documented(rows.begin(), rows.end());
  CHECK(documented.size() == rows.size());
  CHECK(documented == emitted(family));
  CHECK_FALSE(documented.empty());
}

}  // namespace

TEST_CASE("every code of verify has one row", "[wide]") { check_page("verify-codes.md", "CK"); }
TEST_CASE("every code of optim and stat has one row", "[wide]") {
  check_page("optim-codes.md", "OP");
  check_page("optim-codes.md", "ST");
}

}  // namespace codes_test

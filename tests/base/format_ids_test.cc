// Operations, commands and all below them ask a format what it is like (Capabilities), and never
// which one it is: no id of a format and no driver is compared outside of lib/format.
#include <tessera/format/registry.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <regex>
#include <string>
#include <vector>

namespace format_ids_test {

namespace fs = std::filesystem;

namespace {

/// Lines of the file that are no comment.
std::vector<std::string> code_lines(const fs::path& path) {
  std::ifstream stream(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);)
    if (line.find_first_not_of(' ') != line.find("//")) lines.push_back(line);
  return lines;
}

bool compares_driver(const std::string& line) {
  static const std::regex kCompared(R"((==|!=) *&?[a-z_0-9]+_driver\(\)|id\(\) *(==|!=) *")");
  return std::regex_search(line, kCompared);
}

bool compares_id(const std::string& line, std::string_view id) {
  const std::string quoted = "\"" + std::string(id) + "\"";
  const std::size_t at = line.find(quoted);
  if (at == line.npos) return false;
  const std::string around = line.substr(0, at) + line.substr(at + quoted.size());
  return around.find("==") != around.npos || around.find("!=") != around.npos ||
         around.find("starts_with") != around.npos;
}

}  // namespace

TEST_CASE("no format is compared by its id outside of lib/format", "[text]") {
  std::size_t files = 0;
  for (const char* folder : {"lib", "tools", "include"})
    for (const auto& entry :
         fs::recursive_directory_iterator(fs::path(TESSERA_SOURCE_DIR) / folder)) {
      const std::string path = fs::relative(entry.path(), TESSERA_SOURCE_DIR).string();
      if (!entry.is_regular_file() || path.starts_with("lib/format/")) continue;
      if (path.starts_with("lib/ops/scan/")) continue;  // kinds of single files, not checkpoints
      ++files;
      for (const std::string& line : code_lines(entry.path())) {
        CAPTURE(path, line);
        if (compares_driver(line)) FAIL_CHECK("compares drivers");
        for (const tessera::FormatDriver* driver : tessera::all_formats())
          if (compares_id(line, driver->id())) FAIL_CHECK("compares the id of a format");
      }
    }
  CHECK(files > 200);
}

TEST_CASE("the look for compared ids finds them") {
  CHECK(compares_driver("if (driver == &torch_dcp_driver()) return;"));
  CHECK(compares_driver("if (driver->id() != \"hdf5\") return;"));
  CHECK(compares_id("return format == \"safetensors\";", "safetensors"));
  CHECK_FALSE(compares_id("std::string format = \"torch-dcp\";", "torch-dcp"));
  CHECK_FALSE(compares_driver("const auto& d = torch_dcp_driver();"));
}

}  // namespace format_ids_test

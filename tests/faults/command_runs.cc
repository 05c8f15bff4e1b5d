#include "tests/faults/command_runs.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <sstream>

namespace tessera::faults {

namespace stdfs = std::filesystem;
using namespace tessera::testing;

namespace {

std::string slurp(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

}  // namespace

std::map<std::string, std::string> tree(const std::string& path) {
  std::map<std::string, std::string> files;
  if (stdfs::is_regular_file(path)) files[""] = slurp(path);
  if (!stdfs::is_directory(path)) return files;
  for (const auto& entry : stdfs::recursive_directory_iterator(path))
    if (entry.is_regular_file()) files[stdfs::relative(entry.path(), path)] = slurp(entry.path());
  return files;
}

std::string described(const CommandResult& result) {
  return fmt::format("exit {}, {} bytes on stdout, stderr: {}", result.exit, result.out.size(),
                     result.err);
}

std::string take_leftovers(const QuickFolder& folder) {
  std::string found;
  for (const std::string& name : folder.names()) {
    if (!name.starts_with('.')) continue;
    found += name + " ";
    stdfs::remove_all(folder / name);
  }
  return found;
}

std::vector<Writing> writings(const QuickFolder& folder, const std::string& threads) {
  const std::string source = sample("dcp/fsdp2_w2/checkpoint");
  const std::vector<std::string> flags{"--threads", threads, "--progress", "json", "--force"};
  std::vector<Writing> list{{"reshard",
                             folder / "out",
                             {built("ckpt-reshard"), source, folder / "out", "--world-size", "3"}},
                            {"convert",
                             folder / "one.safetensors",
                             {built("ckpt-convert"), source, folder / "one.safetensors"}}};
  for (Writing& writing : list)
    writing.words.insert(writing.words.end(), flags.begin(), flags.end());
  return list;
}

}  // namespace tessera::faults

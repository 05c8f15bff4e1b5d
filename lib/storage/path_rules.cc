#include "lib/storage/path_rules.h"

#include <fmt/format.h>
#include <tessera/base/error.h>

namespace tessera::storage {

std::vector<std::string> confined_components(std::string_view relative, std::string_view directory,
                                             bool allow_empty) {
  auto refuse = [&](std::string_view why) {
    fail(Code::kCorrupt,
         fmt::format("file name \"{}\" {}; files of a checkpoint must lie in its folder [{}]",
                     relative.substr(0, relative.find('\0')), why, directory));
  };
  if (relative.find('\0') != std::string_view::npos) refuse("holds a NUL byte");
  if (!relative.empty() && relative.front() == '/') refuse("is absolute");
  std::vector<std::string> components;
  while (!relative.empty()) {
    const std::size_t slash = relative.find('/');
    const std::string_view part = relative.substr(0, slash);
    relative = slash == std::string_view::npos ? std::string_view{} : relative.substr(slash + 1);
    if (part == "..") {
      fail(
          Code::kCorrupt,
          fmt::format("a file name holds \"..\"; files of a checkpoint must lie in its folder [{}]",
                      directory));
    }
    if (!part.empty() && part != ".") components.emplace_back(part);
  }
  if (components.empty() && !allow_empty) refuse("names no file");
  return components;
}

std::string join_path(std::string_view directory, std::string_view relative) {
  if (relative.empty()) return std::string(directory);
  if (directory.empty()) return std::string(relative);
  if (directory.back() == '/') return fmt::format("{}{}", directory, relative);
  return fmt::format("{}/{}", directory, relative);
}

SplitPath split_path(std::string_view path) {
  while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  const std::size_t slash = path.rfind('/');
  if (slash == std::string_view::npos) return {".", std::string(path)};
  std::string_view parent = path.substr(0, slash);
  while (parent.size() > 1 && parent.back() == '/') parent.remove_suffix(1);
  if (parent.empty()) parent = "/";
  return {std::string(parent), std::string(path.substr(slash + 1))};
}

void fail_link(std::string_view path) {
  fail(Code::kCorrupt,
       fmt::format("{} is a symbolic link; files of a checkpoint must lie in its folder", path));
}

void fail_not_regular(std::string_view path) {
  fail(Code::kCorrupt, fmt::format("{} is not a regular file", path));
}

}  // namespace tessera::storage

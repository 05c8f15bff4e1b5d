#pragma once
// Rules on names that every file system of ours shares.
#include <string>
#include <string_view>
#include <vector>

namespace tessera::storage {

/// The components of a path that came from a checkpoint ("." and empty ones dropped). Absolute
/// paths, "..", NUL and a path without a name throw kCorrupt; `directory` is for the message.
/// `allow_empty`: the folder itself may be meant.
std::vector<std::string> confined_components(std::string_view relative, std::string_view directory,
                                             bool allow_empty = false);

/// `directory` + "/" + `relative` without doubled slashes.
std::string join_path(std::string_view directory, std::string_view relative);

/// Splits at the last slash, trailing slashes ignored: {"a/b", "c"}, {".", "c"}, {"/", "c"}.
struct SplitPath {
  std::string parent;
  std::string name;
};
SplitPath split_path(std::string_view path);

/// The failure for a link met where files must lie inside a folder.
[[noreturn]] void fail_link(std::string_view path);
/// The failure for a folder, pipe, socket or device where a file is wanted.
[[noreturn]] void fail_not_regular(std::string_view path);

}  // namespace tessera::storage

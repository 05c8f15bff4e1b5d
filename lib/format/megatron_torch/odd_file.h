#pragma once
// A name of a checkpoint that is there, but is no file that may be read: a link, a pipe, a device.
#include <tessera/storage/file_system.h>

#include <optional>
#include <string_view>

namespace tessera::megatron_torch {

/// What to say of it; nullopt: it is of the `wanted` type.
inline std::optional<std::string_view> odd_file(FileType type,
                                                FileType wanted = FileType::kRegular) {
  if (type == wanted) return std::nullopt;
  if (type == FileType::kSymlink)
    return "it is a symbolic link; the files of a checkpoint must lie in its folder (cp -rL copies "
           "them)";
  return wanted == FileType::kRegular ? "it is no regular file" : "it is no folder";
}

}  // namespace tessera::megatron_torch

#pragma once
// Files and folders that other libraries write, by their names: no format here reads them, and what
// they are is said.
#include <tessera/storage/file_system.h>

#include <span>
#include <string_view>

namespace tessera {

/// "a checkpoint of Flax (msgpack)"; "" for other names.
std::string_view file_of_other_library(std::string_view name);

/// "an Orbax checkpoint (JAX)", by a file that such a folder has; "" for other folders.
std::string_view folder_of_other_library(std::span<const FileInfo> entries);

}  // namespace tessera

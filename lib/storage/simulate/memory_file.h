#pragma once
// Open files of MemoryFileSystem.
#include <memory>
#include <string>

#include "lib/storage/simulate/memory_tree.h"

namespace tessera::storage {

std::unique_ptr<ReadFile> open_memory_read_file(NodePtr node, std::string path, IoMode mode);
std::unique_ptr<WriteFile> open_memory_write_file(NodePtr node, std::string path,
                                                  std::uint64_t capacity_bytes);

}  // namespace tessera::storage

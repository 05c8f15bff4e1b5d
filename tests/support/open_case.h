#pragma once
// What tests of opening share: checkpoints put at other places, and refusals.
#include <tessera/base/error.h>
#include <tessera/storage/memory_file_system.h>

#include <catch2/catch.hpp>
#include <string>
#include <string_view>

#include "tests/support/inspect_case.h"

namespace tessera::testing {

/// Copies /source to `path`.
inline void copy_to(MemoryFileSystem& fs, const std::string& path) {
  for (const auto& [name, content] : fs.contents("/source"))
    if (!name.ends_with('/')) fs.write_file(path + "/" + name, as_bytes(content));
}

inline void put(MemoryFileSystem& fs, const std::string& path, std::string_view text) {
  fs.write_file(path, as_bytes(text));
}

inline Status refusal(FileSystem& fs, const std::string& path, const OpenOptions& options = {}) {
  try {
    open_checkpoint(fs, path, options);
  } catch (const Error& error) {
    return error.status();
  }
  FAIL("\"" << path << "\" opened");
  return {};
}

inline bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

}  // namespace tessera::testing

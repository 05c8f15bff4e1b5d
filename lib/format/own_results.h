#pragma once
// Results of ours in a folder: each is whole, so that none is a part of another.
#include <tessera/storage/file_system.h>

#include <cstddef>

namespace tessera {

struct OwnResults {
  std::size_t files = 0;    // with their seals beside them
  std::size_t folders = 0;  // with their seals inside; looked for where there are such files

  std::size_t count() const { return files + folders; }
};

OwnResults find_own_results(const Directory& directory);

}  // namespace tessera

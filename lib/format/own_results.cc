#include "lib/format/own_results.h"

#include <tessera/storage/stage.h>

#include <string>

namespace tessera {

OwnResults find_own_results(const Directory& directory) {
  OwnResults found;
  for (const FileInfo& info : directory.list()) {
    if (info.name.starts_with('.')) continue;
    if (info.type == FileType::kRegular) found.files += info.name.ends_with(kSealSuffix);
    if (info.type == FileType::kDirectory)
      found.folders += directory.stat(info.name + "/" + std::string(kSealName)).has_value();
  }
  return found;
}

}  // namespace tessera

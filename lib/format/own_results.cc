#include "lib/format/own_results.h"

#include <tessera/storage/stage.h>

#include <string>
#include <vector>

namespace tessera {

OwnResults find_own_results(const Directory& directory) {
  OwnResults found;
  const std::vector<FileInfo> infos = directory.list();
  for (const FileInfo& info : infos)
    found.files += info.type == FileType::kRegular && !info.name.starts_with('.') &&
                   info.name.ends_with(kSealSuffix);
  if (found.files == 0) return found;  // no folder is one of several
  for (const FileInfo& info : infos)
    if (info.type == FileType::kDirectory && !info.name.starts_with('.'))
      found.folders += directory.stat(info.name + "/" + std::string(kSealName)).has_value();
  return found;
}

}  // namespace tessera

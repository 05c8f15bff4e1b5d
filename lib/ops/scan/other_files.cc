#include "lib/ops/scan/other_files.h"

#include <tessera/base/error.h>
#include <tessera/ops/seal.h>

#include <algorithm>
#include <set>

#include "lib/ops/open/path_resolve.h"

namespace tessera {
namespace {

constexpr int kMostFoldersDeep = 64;

class Others {
 public:
  Others(const OpenedCheckpoint& checkpoint, const std::set<std::string>& looked_into)
      : directory_(*checkpoint.directory), own_(looked_into) {
    own_.insert(seal_name(""));
    // Names of shards, which the reader took from it.
    for (const FileInfo& entry : directory_.list())
      if (entry.name.ends_with(".index.json") || is_pointer_name(entry.name))
        own_.insert(entry.name);
    for (const StoredFile& file : checkpoint.manifest.files) {
      own_.insert(file.path);
      own_.insert(seal_name(file.path));
    }
  }

  void walk(const std::string& folder, int depth) {
    std::vector<FileInfo> entries;
    try {
      entries = directory_.list(folder);
    } catch (const Error&) {
      if (folder.empty()) throw;
      return found.push_back(folder);  // nobody looked into it
    }
    for (const FileInfo& entry : entries) {
      std::string name = folder.empty() ? entry.name : join_path(folder, entry.name);
      if (own_.contains(name)) continue;
      if (entry.type == FileType::kDirectory && depth < kMostFoldersDeep)
        walk(name, depth + 1);
      else
        found.push_back(std::move(name));
    }
  }

  std::vector<std::string> found;

 private:
  const Directory& directory_;
  std::set<std::string> own_;
};

}  // namespace

std::vector<std::string> other_files(const OpenedCheckpoint& checkpoint,
                                     const std::set<std::string>& looked_into) {
  Others others(checkpoint, looked_into);
  others.walk("", 0);
  std::ranges::sort(others.found);
  return std::move(others.found);
}

}  // namespace tessera

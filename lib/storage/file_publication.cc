#include "lib/storage/file_publication.h"

#include <fmt/format.h>
#include <tessera/base/error.h>

#include "lib/storage/path_rules.h"

namespace tessera::storage {

namespace {

void retire_seal(FileSystem& fs, const StagePaths& paths, Publication& publication) {
  publication.place_new(paths.seal_beside(), join_path(paths.stage(), kOldSealName));
  fs.sync_directory(paths.parent);
  publication.accept();
}

void place_seal(FileSystem& fs, const StagePaths& paths, const std::string& seal,
                Publication& publication) {
  if (seal.empty()) return;
  publication.place_new(seal, paths.seal_beside());
  fs.sync_directory(paths.parent);
}

}  // namespace

void publish_file(FileSystem& fs, const StagePaths& paths, const std::string& seal, bool replaces,
                  Publication& publication) {
  const std::string staged = join_path(paths.stage(), paths.name);
  if (fs.open_directory(paths.parent)->stat(split_path(paths.seal_beside()).name))
    retire_seal(fs, paths, publication);
  if (!replaces) {
    place_seal(fs, paths, seal, publication);
    publication.place_new(staged, paths.final_path());
    fs.sync_directory(paths.parent);  // the commit point
    return;
  }
  publication.replace_file(staged, paths.final_path());
  fs.sync_directory(paths.parent);  // the commit point
  publication.accept();
  try {
    place_seal(fs, paths, seal, publication);
  } catch (const Error& error) {
    Status status = error.status();
    status.message = fmt::format("{} is replaced and whole, but has no checksums beside it: {}",
                                 paths.final_path(), status.message);
    throw Error(status);
  }
}

}  // namespace tessera::storage

#include "lib/storage/left_journal.h"

#include <tessera/storage/checksum.h>

#include <string>

#include "lib/storage/path_rules.h"

namespace tessera::storage {

namespace {

bool has_seal(const FileSystem& fs, const std::string& folder, const JournalEntry& seal) {
  const auto directory = fs.open_directory(folder);
  const auto info = directory->stat(kSealName);
  if (!info || info->type != FileType::kRegular || info->size_bytes != seal.length) return false;
  Bytes bytes(info->size_bytes);
  directory->open(kSealName)->read_at(0, bytes);
  return crc32(0, bytes) == seal.crc32;
}

/// The stage, and not what shows, has the seal that the journal names.
bool is_unpublished(const FileSystem& fs, const StagePaths& paths, const JournalContent& journal) {
  if (!journal.seal) return false;
  const auto shown = fs.open_directory(paths.parent)->stat(paths.name);
  if (shown && shown->type == FileType::kDirectory &&
      has_seal(fs, paths.final_path(), *journal.seal))
    return false;
  return has_seal(fs, paths.stage(), *journal.seal);
}

}  // namespace

std::optional<LeftJournal> find_left_journal(const FileSystem& fs, const StagePaths& paths) {
  auto inside = read_journal(*fs.open_directory(paths.stage()), kJournalName, paths.plan_hash);
  if (inside) return LeftJournal{std::move(*inside), false};
  auto beside = read_journal(*fs.open_directory(paths.parent), split_path(paths.journal()).name,
                             paths.plan_hash);
  if (!beside || (beside->same_plan && !is_unpublished(fs, paths, *beside))) return std::nullopt;
  return LeftJournal{std::move(*beside), true};
}

}  // namespace tessera::storage

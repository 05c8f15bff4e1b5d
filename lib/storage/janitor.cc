#include "lib/storage/janitor.h"

#include <fmt/format.h>
#include <tessera/base/error.h>

#include <set>
#include <vector>

#include "lib/storage/path_rules.h"

namespace tessera::storage {

namespace {

std::vector<OwnName> own_names(const Directory& parent, const StagePaths& paths) {
  std::vector<OwnName> names;
  for (const FileInfo& entry : parent.list())
    if (auto own = parse_own_name(paths, entry)) names.push_back(std::move(*own));
  return names;
}

}  // namespace

void repair_interrupted(FileSystem& fs, const StagePaths& paths) {
  const std::unique_ptr<Directory> parent = fs.open_directory(paths.parent);
  if (parent->stat(paths.name)) return;
  std::vector<std::string> trashes;
  for (const OwnName& own : own_names(*parent, paths))
    if (own.kind == OwnNameKind::kTrash) trashes.push_back(own.hash);
  if (trashes.empty()) return;
  if (trashes.size() > 1) {
    fail(Code::kAlreadyExists,
         fmt::format("{} is absent after interrupted replacements, and more than one old version "
                     "is kept ({} and {})",
                     paths.final_path(), paths.trash_of(trashes[0]), paths.trash_of(trashes[1])),
         fmt::format("rename the one to keep to {}", paths.final_path()));
  }
  // Safe without the lock too: a run that is alive between its renames finds its final name taken
  // and gives up.
  std::unique_ptr<FileLock> lock;
  try {
    lock = fs.try_lock(paths.lock_of(trashes[0]));
    if (!lock) return;
  } catch (const Error& error) {
    if (error.code() != Code::kUnsupported) throw;
  }
  fs.rename_new(paths.trash_of(trashes[0]), paths.final_path());
  fs.sync_directory(paths.parent);
}

void remove_stale(FileSystem& fs, const StagePaths& paths) {
  const std::unique_ptr<Directory> parent = fs.open_directory(paths.parent);
  std::set<std::string> hashes;
  for (OwnName& own : own_names(*parent, paths))
    if (own.hash != paths.hash) hashes.insert(std::move(own.hash));
  if (hashes.empty()) return;
  // Swaps of names that are not on the disk yet must be there before what they replaced goes.
  fs.sync_directory(paths.parent);
  for (const std::string& hash : hashes) {
    try {
      const std::unique_ptr<FileLock> lock = fs.try_lock(paths.lock_of(hash));
      if (!lock) continue;
      fs.remove_tree(paths.stage_of(hash));
      if (parent->stat(paths.name)) fs.remove_tree(paths.trash_of(hash));
      if (parent->stat(split_path(paths.journal_of(hash)).name))
        fs.remove_file(paths.journal_of(hash));
    } catch (const Error&) {
      // Also kUnsupported: without locks a stale stage looks like a live one.
    }
  }
}

std::string other_stage(const FileSystem& fs, const StagePaths& paths) {
  for (const OwnName& own : own_names(*fs.open_directory(paths.parent), paths))
    if (own.kind == OwnNameKind::kStage && own.hash != paths.hash) return paths.stage_of(own.hash);
  return {};
}

void remove_own_leftovers(FileSystem& fs, const StagePaths& paths, bool keep_stage) {
  const std::unique_ptr<Directory> parent = fs.open_directory(paths.parent);
  bool stage = false;
  bool trash = false;
  bool journal = false;
  for (const OwnName& own : own_names(*parent, paths)) {
    if (own.hash != paths.hash) continue;
    stage |= own.kind == OwnNameKind::kStage && !keep_stage;
    journal |= own.kind == OwnNameKind::kJournal && !keep_stage;
    trash |= own.kind == OwnNameKind::kTrash;
  }
  if (!stage && !trash && !journal) return;
  fs.sync_directory(paths.parent);
  if (stage) fs.remove_tree(paths.stage());
  if (trash && parent->stat(paths.name)) fs.remove_tree(paths.trash());
  if (journal) fs.remove_file(paths.journal());
}

}  // namespace tessera::storage

#pragma once
// The names a stage uses next to its final name, and how ours are recognised.
//
//   parent/<name>                    the final name
//   parent/.<name>.tmp-<hash>/       the stage; after a swap, the old content on its way out
//   parent/.<name>.tmp-<hash>.lock   its lease lock, beside it so that the stage can be renamed
//                                    and removed under the lock
//   parent/.<name>.tmp-<hash>.jrnl   the journal of a folder that is about to be renamed
//   parent/.<name>.trash-<hash>/     old content between the two renames of trash-then-rename,
//                                    never longer
//   parent/<name>.tessera.json       the seal of a one-file result
#include <tessera/storage/file_system.h>

#include <optional>
#include <string>
#include <string_view>

namespace tessera::storage {

struct StagePaths {
  std::string parent;     // canonical
  std::string name;       // last component of the final path
  std::string plan_hash;  // whole
  std::string hash;       // the part of it that names use

  std::string final_path() const;
  std::string stage() const;
  std::string trash() const { return trash_of(hash); }
  std::string lock() const { return lock_of(hash); }
  std::string journal() const { return journal_of(hash); }
  std::string seal_beside() const;

  std::string stage_of(std::string_view other_hash) const;
  std::string trash_of(std::string_view other_hash) const;
  std::string lock_of(std::string_view other_hash) const;
  std::string journal_of(std::string_view other_hash) const;
};

/// Resolves `final_path`. kNotFound when its folder is absent, kInvalidArgument for a path without
/// a name, or with one so long that the stage could not be named after it, or a hash that is not
/// hex.
StagePaths make_stage_paths(const FileSystem& fs, const std::string& final_path,
                            const std::string& plan_hash);

enum class OwnNameKind { kStage, kTrash, kLock, kJournal };
struct OwnName {
  OwnNameKind kind;
  std::string hash;
};
/// What `entry` (a name in the parent) is to this final name; nullopt: not ours.
std::optional<OwnName> parse_own_name(const StagePaths& paths, const FileInfo& entry);

}  // namespace tessera::storage

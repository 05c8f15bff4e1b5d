#include "lib/live/retention.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/ops/seal.h>
#include <tessera/storage/checksum.h>

#include <algorithm>
#include <charconv>
#include <memory>
#include <optional>
#include <set>

#include "lib/ops/open/path_resolve.h"
#include "lib/storage/janitor.h"
#include "lib/storage/lease.h"
#include "lib/storage/stage_paths.h"

namespace tessera {

namespace {

constexpr std::string_view kPointer = "latest";
constexpr std::string_view kPointerStage = ".latest.tmp-tessera";
constexpr std::string_view kPointerLock = ".latest.tmp-tessera.lock";

/// "step_100": "step_" and 100. Nullopt without a number at the end.
std::optional<std::pair<std::string, std::uint64_t>> numbered(std::string_view name) {
  std::size_t digits = name.size();
  while (digits > 0 && is_digit(name[digits - 1])) --digits;
  if (digits == name.size() || name.size() - digits > 18) return std::nullopt;
  std::uint64_t number = 0;
  std::from_chars(name.data() + digits, name.data() + name.size(), number);
  return std::pair(std::string(name.substr(0, digits)), number);
}

/// What cannot be read is not.
bool is_ours(const FileSystem& fs, const std::string& path) {
  try {
    return read_seal(*fs.open_directory(path), "").has_value();
  } catch (const Error&) {
    return false;
  }
}

/// Whether the path has that component: "step_9", "./step_9", "/run/step_9/", "step_9/model".
bool passes(std::string_view path, std::string_view component) {
  while (!path.empty()) {
    const std::size_t end = std::min(path.find('/'), path.size());
    if (path.substr(0, end) == component) return true;
    path.remove_prefix(std::min(end + 1, path.size()));
  }
  return false;
}

/// Whether a pointer in `parent` names `child` or what is inside, in whichever way it is written
/// (Megatron's "9" too): one that readers do not follow may still be somebody's.
bool is_named(FileSystem& fs, const std::string& parent, const std::string& child) {
  return std::ranges::any_of(PathResolver(fs, "").pointers_in(parent), [&](const Pointer& pointer) {
    return passes(pointer.target, child) || split_path(pointer.path).second == child;
  });
}

/// One save at a time decides what the pointer of a run's folder names, or that nothing of it names
/// a checkpoint that goes: else a neighbour may remove what this one is about to name. nullptr:
/// the file system has no locks.
std::unique_ptr<FileLock> pointer_lock(FileSystem& fs, const std::string& parent) {
  constexpr int kPatienceMs = 30000;  // renames are quick
  const std::string path = join_path(parent, std::string(kPointerLock));
  auto lock = storage::try_lock_within(fs, path, kPatienceMs);
  if (lock && !*lock) fail(Code::kIo, fmt::format("another save still holds {}", printable(path)));
  return lock ? std::move(*lock) : nullptr;
}

/// Hidden first, then removed, so that a half removed checkpoint is never to be seen. False: it
/// stays, as a pointer names it or another one removes it. Asked again once it is hidden: pointers
/// of others know no lock. Where the file system has none, of two removals the one that hides it
/// goes on: the other finds no such folder.
bool hide_checkpoint(FileSystem& fs, const std::string& parent, const std::string& path,
                     const std::string& hidden) {
  const std::string child = split_path(path).second;
  const auto turn = pointer_lock(fs, parent);
  if (is_named(fs, parent, child)) return false;
  if (fs.stat(hidden)) fs.remove_tree(hidden);  // an interrupted removal's, of one of that name
  fs.rename_new(path, hidden);
  bool named = true;  // if it is not known, too
  try {
    named = is_named(fs, parent, child);
  } catch (const Error&) {
  }
  if (named) fs.rename_new(hidden, path);
  return !named;
}

/// Removes checkpoints, one after the other.
class Remover {
 public:
  Remover(FileSystem& fs, std::string parent) : fs_(fs), parent_(std::move(parent)) {}

  /// False: no other one may be tried now. Where a sync of the folder failed, a later one that
  /// succeeds would prove nothing.
  bool remove(const std::string& child) {
    const std::string path = join_path(parent_, child);
    bool hidden = false;
    try {
      const auto paths =
          storage::make_stage_paths(fs_, path, hex(sha256(as_bytes("removed " + path))));
      const storage::TriedLock lock = storage::try_lock(fs_, paths.lock());
      if (lock && !*lock) return true;  // another save removes it
      hidden = hide_checkpoint(fs_, parent_, path, paths.stage());
      if (!hidden) return true;
      fs_.sync_directory(paths.parent);
      fs_.remove_tree(paths.stage());
      done_.removed.push_back(child);
      return true;
    } catch (const Error& error) {
      done_.failed.push_back(fmt::format("{}: {}", child, error.status().message));
      return !hidden;
    }
  }
  Retention done() { return std::move(done_); }

 private:
  FileSystem& fs_;
  const std::string parent_;
  Retention done_;
};

/// Names of checkpoints in `parent` that interrupted runs left something of: a stage
/// ".step_90.tmp-0123" or the lock of one.
std::set<std::string> left_over(const Directory& parent, const std::string& stem) {
  std::set<std::string> names;
  for (const FileInfo& info : parent.list()) {
    const bool lock = info.type == FileType::kRegular && info.name.ends_with(".lock");
    if (info.type != FileType::kDirectory && !lock) continue;
    if (!info.name.starts_with("." + stem)) continue;
    const std::size_t end = info.name.rfind(".tmp-");
    if (end == std::string::npos || end == 0) continue;
    const std::string name = info.name.substr(1, end - 1);
    const auto parts = numbered(name);
    if (parts && parts->first == stem) names.insert(name);
  }
  return names;
}

}  // namespace

void check_can_point(const FileSystem& fs, const std::string& path) {
  const auto [parent, name] = split_path(path);
  if (name == kPointer)
    fail(Code::kInvalidArgument, "`latest` cannot point to a checkpoint that is named `latest`",
         "save to another name, or leave update_latest out");
  const auto info = fs.stat(join_path(parent, std::string(kPointer)));
  if (info && info->type == FileType::kDirectory)
    fail(Code::kInvalidArgument,
         fmt::format("`latest` in {} is a folder, which a pointer cannot replace",
                     printable(parent)),
         "rename it, or leave update_latest out");
}

void point_latest(FileSystem& fs, const std::string& path) {
  const auto [parent, name] = split_path(path);
  const std::string stage = join_path(parent, std::string(kPointerStage));
  const auto turn = pointer_lock(fs, parent);
  if (!fs.stat(path))
    fail(Code::kNotFound, "another save removed it before `latest` could name it",
         "give every run its own folder, or all saves to one folder the same keep_last");
  fs.remove_tree(stage);  // an interrupted save's
  const auto file = fs.create(stage, IoMode::kBuffered);
  file->write_at(0, as_bytes(name));
  file->sync();
  file->close();
  fs.rename(stage, join_path(parent, std::string(kPointer)));
  fs.sync_directory(parent);
}

Retention remove_old(FileSystem& fs, const std::string& path, std::uint32_t keep_last) {
  const auto [parent, name] = split_path(path);
  const auto own = numbered(name);
  if (!own) return {};
  const auto directory = fs.open_directory(parent);
  std::vector<std::pair<std::uint64_t, std::string>> found;
  for (const FileInfo& info : directory->list()) {
    const auto parts = numbered(info.name);
    if (info.type != FileType::kDirectory || !parts || parts->first != own->first) continue;
    // Larger ones are of a run that was rolled back; an equal one is `path`, or written otherwise.
    if (parts->second >= own->second) continue;
    if (is_ours(fs, join_path(parent, info.name))) found.emplace_back(parts->second, info.name);
  }
  std::ranges::sort(found, std::greater<>());
  Remover remover(fs, parent);
  std::uint32_t kept = 1;  // `path` itself
  for (const auto& [number, child] : found) {
    if (kept < keep_last) {
      ++kept;
      continue;
    }
    if (!remover.remove(child)) return remover.done();
  }
  for (const std::string& child : left_over(*directory, own->first)) {
    try {
      storage::remove_stale(fs, storage::make_stage_paths(fs, join_path(parent, child),
                                                          hex(sha256(as_bytes("none")))));
    } catch (const Error&) {
      break;
    }
  }
  return remover.done();
}

}  // namespace tessera

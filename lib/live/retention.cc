#include "lib/live/retention.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/ops/seal.h>
#include <tessera/storage/checksum.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>

#include "lib/ops/path_resolve.h"
#include "lib/storage/janitor.h"
#include "lib/storage/stage_paths.h"

namespace tessera {

namespace {

constexpr std::string_view kPointer = "latest";
constexpr std::string_view kPointerStage = ".latest.tmp-tessera";

/// "step_100": "step_" and 100. Nullopt without a number at the end.
std::optional<std::pair<std::string, std::uint64_t>> numbered(std::string_view name) {
  std::size_t digits = name.size();
  while (digits > 0 && name[digits - 1] >= '0' && name[digits - 1] <= '9') --digits;
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


/// Whether a pointer in `parent` names `child`, in whichever way it is written ("./step_9",
/// "/run/step_9/", Megatron's "9"): one that readers do not follow may still be somebody's.
bool is_named(FileSystem& fs, const std::string& parent, const std::string& child) {
  for (const Pointer& pointer : PathResolver(fs, "").pointers_in(parent)) {
    std::string_view target = pointer.path.empty() ? pointer.target : pointer.path;
    while (target.ends_with('/')) target.remove_suffix(1);
    if (target == child || target.ends_with("/" + child)) return true;
  }
  return false;
}

/// Hidden first, then removed, so that a half removed checkpoint is never to be seen. False: it
/// stays. Asked again once it is hidden: nobody can point to it from then on. Where the file system
/// has no locks, of two removals the one that hides it goes on: the other finds no such folder.
bool remove_checkpoint(FileSystem& fs, const std::string& parent, const std::string& child) {
  const std::string path = join_path(parent, child);
  const auto paths = storage::make_stage_paths(fs, path, hex(sha256(as_bytes("removed " + path))));
  std::unique_ptr<FileLock> lock;
  try {
    lock = fs.try_lock(paths.lock());
    if (!lock) return false;
  } catch (const Error& error) {
    if (error.code() != Code::kUnsupported) throw;
  }
  if (is_named(fs, parent, child)) return false;
  fs.rename_new(path, paths.stage());
  bool named = true;  // where it cannot be told, too
  try {
    named = is_named(fs, parent, child);
  } catch (const Error&) {
  }
  if (named) {
    fs.rename_new(paths.stage(), path);
    return false;
  }
  fs.sync_directory(paths.parent);
  fs.remove_tree(paths.stage());
  return true;
}

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

void point_latest(FileSystem& fs, const std::string& path) {
  const auto [parent, name] = split_path(path);
  const std::string stage = join_path(parent, std::string(kPointerStage));
  if (fs.stat(stage)) fs.remove_file(stage);
  const auto file = fs.create(stage, IoMode::kBuffered);
  file->write_at(0, as_bytes(name));
  file->sync();
  file->close();
  fs.rename(stage, join_path(parent, std::string(kPointer)));
  fs.sync_directory(parent);
}

std::vector<std::string> remove_old(FileSystem& fs, const std::string& path,
                                    std::uint32_t keep_last) {
  const auto [parent, name] = split_path(path);
  const auto own = numbered(name);
  if (!own) return {};
  const auto directory = fs.open_directory(parent);
  std::vector<std::pair<std::uint64_t, std::string>> found;
  for (const FileInfo& info : directory->list()) {
    const auto parts = numbered(info.name);
    if (info.type != FileType::kDirectory || !parts || parts->first != own->first) continue;
    if (parts->second > own->second) continue;  // of a run that was rolled back
    if (is_ours(fs, join_path(parent, info.name))) found.emplace_back(parts->second, info.name);
  }
  std::ranges::sort(found, std::greater<>());
  std::vector<std::string> removed;
  std::uint32_t kept = 1;  // `path` itself
  for (const auto& [number, child] : found) {
    if (child == name) continue;
    if (kept < keep_last) {
      ++kept;
      continue;
    }
    try {
      if (remove_checkpoint(fs, parent, child)) removed.push_back(child);
    } catch (const Error&) {
      // The next save tries again. Not this one: where a sync of the folder failed, a later one
      // that succeeds would prove nothing.
      return removed;
    }
  }
  for (const std::string& child : left_over(*directory, own->first)) {
    try {
      storage::remove_stale(fs, storage::make_stage_paths(fs, join_path(parent, child),
                                                          hex(sha256(as_bytes("none")))));
    } catch (const Error&) {
      break;
    }
  }
  return removed;
}

}  // namespace tessera

#include "tools/reopen.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include <optional>
#include <tuple>

#include "lib/base/damage.h"
#include "tools/failure.h"

namespace tessera::tools {
namespace {

/// What a path leads to: a rename changes the times of a folder and of the one it lies in.
struct Mark {
  bool known = true;  // false: it could not be looked at, which says nothing of a change
  FileType type = FileType::kOther;
  std::uint64_t device = 0, inode = 0;
  std::int64_t mtime_ns = 0, ctime_ns = 0;
  bool operator==(const Mark&) const = default;
};

using Marks = std::vector<std::optional<Mark>>;

std::optional<Mark> mark_of(const FileSystem& fs, const std::string& path) {
  try {
    const auto info = fs.stat(path);
    if (!info) return std::nullopt;
    return Mark{true, info->type, info->device, info->inode, info->mtime_ns, info->ctime_ns};
  } catch (const Error&) {
    return Mark{.known = false};
  }
}

Marks marks_of(const FileSystem& fs, const std::vector<std::string>& paths) {
  Marks marks;
  for (const std::string& path : paths) marks.push_back(mark_of(fs, path));
  return marks;
}

/// The first path that leads elsewhere now; "": none.
std::string changed_path(const FileSystem& fs, const std::vector<std::string>& paths,
                         const Marks& before, bool files_only) {
  for (std::size_t i = 0; i < paths.size(); ++i) {
    if (files_only && (!before[i] || before[i]->type != FileType::kRegular)) continue;
    std::optional<Mark> now = mark_of(fs, paths[i]);
    if ((before[i] && !before[i]->known) || (now && !now->known)) continue;
    if (files_only && now) now->ctime_ns = before[i]->ctime_ns;  // a new link is no new content
    if (now != before[i]) return paths[i];
  }
  return {};
}

[[noreturn]] void fail_changed(const std::string& path, const std::string& what) {
  in_file(path, [&] {
    fail(Code::kCorrupt,
         what.empty() ? "it changed while it was read"
                      : fmt::format("it changed while it was read: {}", what),
         "run again when nothing writes to it");
  });
  throw;
}

}  // namespace

Outcome read_steadily(const FileSystem& fs, const std::vector<std::string>& paths, bool writes,
                      const std::function<Outcome()>& work) {
  for (bool again = false;; again = true) {
    const Marks before = marks_of(fs, paths);
    std::string changed, what;
    try {
      Outcome outcome = work();
      if (writes) return outcome;
      // A folder is held open: what was read of it is of one checkpoint, if all was there.
      changed = changed_path(fs, paths, before, /*files_only=*/outcome.exit == kExitDone);
      if (changed.empty()) return outcome;
    } catch (const Error& error) {
      if (!is_damage(error.code())) throw;
      changed = changed_path(fs, paths, before, false);
      if (changed.empty()) throw;
      what = error.status().message;
    }
    if (again) fail_changed(changed, what);
  }
}

}  // namespace tessera::tools

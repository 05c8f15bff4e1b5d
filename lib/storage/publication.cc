#include "lib/storage/publication.h"

#include <tessera/base/error.h>

#include "lib/storage/path_rules.h"

namespace tessera::storage {

void Publication::place_new(const std::string& from, const std::string& to) {
  // A rename that fails here has replaced nothing, so `started_` follows it.
  fs_.rename_new(from, to);
  started_ = true;
  steps_.push_back({Kind::kMoved, from, to});
}

void Publication::replace_folder(const std::string& from, const std::string& to,
                                 const std::string& trash) {
  if (exchange(from, to)) return;
  // The trash of an earlier replacement must be gone for good before there is a new one: a crash
  // between the two renames may leave one trash only.
  fs_.sync_directory(split_path(to).parent);
  move(to, trash);
  move(from, to);
  // Undoing both, should the sync that follows fail, would pass once more through a state without
  // `to`; if a crash then kept the later renames and lost the earlier ones, the old content would
  // have no name left. So from here on the new content stays.
  steps_.clear();
}

void Publication::replace_file(const std::string& from, const std::string& to) {
  if (exchange(from, to)) return;
  attempt(from, [&] { fs_.rename(from, to); });
}

void Publication::undo() noexcept {
  try {
    while (!steps_.empty()) {
      const Step step = steps_.back();
      steps_.pop_back();
      if (step.kind == Kind::kExchanged) {
        fs_.exchange(step.from, step.to);
      } else {
        fs_.rename_new(step.to, step.from);
      }
    }
  } catch (...) {
    // What is visible now is whole all the same: every step leaves the old content or the new one.
  }
}

/// A rename that was refused, as in another user's sticky folder, changed nothing; of one that
/// failed otherwise nobody knows, unless the names show it.
bool Publication::is_still_there(const std::string& path,
                                 const std::optional<FileInfo>& before) const {
  if (!before || before->inode == 0) return false;
  try {
    const auto now = fs_.stat(path);
    return now && now->device == before->device && now->inode == before->inode;
  } catch (const Error&) {
    return false;
  }
}

/// One that reports an error may have happened.
void Publication::attempt(const std::string& from, const std::function<void()>& rename) {
  const bool was_started = started_;
  const std::optional<FileInfo> before = fs_.stat(from);
  started_ = true;
  try {
    rename();
  } catch (const Error&) {
    if (is_still_there(from, before)) started_ = was_started;
    throw;
  }
}

bool Publication::exchange(const std::string& a, const std::string& b) {
  const bool was_started = started_;
  bool done = false;
  attempt(a, [&] { done = fs_.exchange(a, b); });
  if (!done) {
    started_ = was_started;
    return false;
  }
  steps_.push_back({Kind::kExchanged, a, b});
  return true;
}

void Publication::move(const std::string& from, const std::string& to) {
  attempt(from, [&] { fs_.rename_new(from, to); });
  steps_.push_back({Kind::kMoved, from, to});
}

}  // namespace tessera::storage

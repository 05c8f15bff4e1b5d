#include "lib/storage/publication.h"

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
  started_ = true;
  fs_.rename(from, to);
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

bool Publication::exchange(const std::string& a, const std::string& b) {
  const bool before = started_;
  started_ = true;  // an exchange that reports an error may have happened
  if (!fs_.exchange(a, b)) {
    started_ = before;
    return false;
  }
  steps_.push_back({Kind::kExchanged, a, b});
  return true;
}

void Publication::move(const std::string& from, const std::string& to) {
  started_ = true;
  fs_.rename_new(from, to);
  steps_.push_back({Kind::kMoved, from, to});
}

}  // namespace tessera::storage

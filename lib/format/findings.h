#pragma once
// Findings of a format's reader: damage that leaves the rest readable. Thrown at once, or, for
// verbs that report damage (ReadOptions::tolerate_damage), collected as notes. Not thread-safe.
#include <tessera/base/error.h>
#include <tessera/format/format_driver.h>
#include <tessera/state/manifest.h>
#include <tessera/storage/file_system.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/base/damage.h"

namespace tessera {

/// Whether a reader may note a failure of one file or item, and go on with the others.
inline bool tolerates(const ReadOptions& options, Code code) {
  return options.tolerate_damage && is_damage(code) &&
         (options.tolerate_io_errors || code != Code::kIo);
}

/// What helps when a part of a checkpoint is gone.
inline constexpr std::string_view kDamageHint =
    "ckpt-inspect verify lists what is lost; ckpt-convert --salvage writes what is whole";

/// What stands where a data file should: nothing of it is read or followed.
inline std::string_view no_regular_file(FileType type) {
  switch (type) {
    case FileType::kSymlink:
      return "it is a symbolic link; the files of a checkpoint must lie in its folder (cp -rL "
             "copies them)";
    case FileType::kDirectory:
      return "it is a folder where a file should be";
    default:
      return "it is no regular file but a FIFO, a socket or a device";
  }
}

/// Message of Finding::kUnreadableFile: a file of a set exists but cannot be read.
inline std::string unreadable_text(std::string_view whose, const Status& why) {
  std::string text(whose);
  return text + ": the file cannot be read and counts as lost: " + why.message;
}

class Findings {
 public:
  Findings(bool tolerate, std::vector<Note>& notes) : tolerate_(tolerate), notes_(notes) {}

  bool tolerate() const { return tolerate_; }

  /// Damage: throws kCorrupt with this context, or notes it with Severity::kError.
  void error(Finding code, std::string message, std::string_view file,
             std::string_view tensor = {}) {
    if (tolerate_) return note(code, Severity::kError, std::move(message), file, tensor);
    Status status{Code::kCorrupt, std::move(message), {}, std::string(kDamageHint)};
    status.context.file = std::string(file);
    status.context.tensor = std::string(tensor);
    throw Error(std::move(status));
  }
  void note(Finding code, Severity severity, std::string message, std::string_view file = {},
            std::string_view tensor = {}) {
    notes_.push_back({code, severity, std::move(message), std::string(file), std::string(tensor)});
  }

 private:
  bool tolerate_;
  std::vector<Note>& notes_;
};

}  // namespace tessera

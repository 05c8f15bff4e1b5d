#pragma once
// The renames of a commit, recorded so that they can be undone when one of them, or the sync behind
// them, fails.
#include <tessera/storage/file_system.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace tessera::storage {

class Publication {
 public:
  explicit Publication(FileSystem& fs) : fs_(fs) {}

  /// `from` -> `to`, which must be absent (kAlreadyExists).
  void place_new(const std::string& from, const std::string& to);
  /// `from` -> `to`; what is there ends at `from` (one atomic exchange), or, where exchange is
  /// unsupported, at `trash`.
  void replace_folder(const std::string& from, const std::string& to, const std::string& trash);
  /// The same for a file, which plain rename replaces atomically where exchange is unsupported.
  void replace_file(const std::string& from, const std::string& to);

  /// What was done so far is on the disk and stays: undo() leaves it alone.
  void accept() { steps_.clear(); }

  /// Names were changed, so that what `from` and `to` lead to after a crash is open until the
  /// parent is synced.
  bool started() const { return started_; }
  /// Undoes the renames, last first, as far as that works. A replacement by plain renames, once
  /// done, is not undone: the new content, which is whole, stays visible. Never throws.
  void undo() noexcept;

 private:
  enum class Kind { kMoved, kExchanged };
  struct Step {
    Kind kind;
    std::string from;
    std::string to;
  };
  bool exchange(const std::string& a, const std::string& b);
  void attempt(const std::string& from, const std::function<void()>& rename);
  bool is_still_there(const std::string& path, const std::optional<FileInfo>& before) const;
  void move(const std::string& from, const std::string& to);

  FileSystem& fs_;
  std::vector<Step> steps_;
  bool started_ = false;
};

}  // namespace tessera::storage

#pragma once
// A folder that is held against its seal while it is read: before bytes of a sealed file are handed
// out, each MiB they lie in must have the CRC that the seal says, which costs reading the rest of
// it, once for each time the file is opened.
//
// Zip archives keep a CRC of each record, which their reader checks, and which knows the tensor; of
// them the first and the last MiB and a few between are held against the seal, by check(),
// once all is read: that finds a file of another save with the same size, unless it differs in few
// places. Files that the seal does not name are read as they are. Thread-safe as what it wraps.
#include <tessera/ops/seal.h>
#include <tessera/state/manifest.h>
#include <tessera/storage/file_system.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// Is it a zip archive?
bool has_sums_of_its_own(const ReadFile& file);

class SealedDirectory final : public Directory {
 public:
  /// Called for bytes that are not the sealed ones, by one thread at a time. May throw.
  using OnDifference = std::function<void(const Note&)>;

  /// `directory` outlives it and every file opened through it, as it outlives those.
  SealedDirectory(const Directory& directory, std::vector<SealedFile> files,
                  OnDifference on_difference);
  SealedDirectory(std::unique_ptr<Directory> directory, std::vector<SealedFile> files,
                  OnDifference on_difference);

  /// What a reader's `on_difference` does: throws kCorrupt.
  [[noreturn]] static void refuse(const Note& difference);

  const std::string& path() const override { return directory_.path(); }
  /// The file's read_at calls `on_difference` for each MiB that differs, and returns it.
  std::unique_ptr<ReadFile> open(std::string_view relative, IoMode mode) const override;
  /// Files opened so far that are zip archives, in order.
  std::vector<std::string> archives() const;
  /// Those that were opened by other means, as for the metadata.
  void set_archives_elsewhere(std::vector<std::string> paths);
  const std::vector<std::string>& archives_elsewhere() const { return archives_elsewhere_; }
  /// Whether a byte of a file is needed.
  using Needs = std::function<bool(std::string_view path, std::uint64_t byte)>;
  /// A part is looked at alone: a single bit that turned in a MiB, outside of what is read there
  /// and of what `needs` says, is none of its damage. Before any file is opened.
  void look_at_part(Needs needs) { needs_ = std::move(needs); }

  /// Compares the first and last MiB of sealed files and a few between, or with `whole` all of
  /// them; calls `on_difference` for what differs.
  void check(std::span<const std::string> paths, bool whole = false) const;
  std::optional<FileInfo> stat(std::string_view relative) const override {
    return directory_.stat(relative);
  }
  std::vector<FileInfo> list(std::string_view relative) const override {
    return directory_.list(relative);
  }

 private:
  bool is_archive(const ReadFile& file, const SealedFile& sealed) const;

  std::unique_ptr<Directory> owned_;
  const Directory& directory_;
  std::map<std::string, SealedFile, std::less<>> files_;
  OnDifference on_difference_;
  Needs needs_;                                   // unset: all is looked at
  mutable std::mutex mutex_;                      // of what follows, and of on_difference
  mutable std::map<std::string, bool> archives_;  // by path, of the files opened: is it one?
  std::vector<std::string> archives_elsewhere_;
};

}  // namespace tessera

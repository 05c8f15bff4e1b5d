#pragma once
// A folder whose metadata is held against its seal while it is read: before bytes of a sealed file
// are handed out, each MiB they lie in must have the CRC that the seal says. Small reads of
// metadata cost a MiB each, so this is no way to read tensors.
//
// Files that the seal does not name are read as they are, and so are zip archives: they keep a
// CRC of each record, which their reader checks. Owns nothing. Thread-safe as what it wraps.
#include <tessera/ops/seal.h>
#include <tessera/state/manifest.h>
#include <tessera/storage/file_system.h>

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// Code of the note of bytes that are not the sealed ones.
inline constexpr std::string_view kSealDifference = "CK043";

/// Is it a zip archive?
bool has_sums_of_its_own(const ReadFile& file);

class SealedDirectory final : public Directory {
 public:
  /// Told of bytes that are not the sealed ones; called by one thread at a time. May throw.
  using OnDifference = std::function<void(const Note&)>;

  /// All outlive it and every file opened through it.
  SealedDirectory(const Directory& directory, const Seal& seal, const OnDifference& on_difference)
      : directory_(directory), seal_(seal), on_difference_(on_difference) {}

  const std::string& path() const override { return directory_.path(); }
  /// The file's read_at tells `on_difference` of each MiB that differs, once, and hands it out.
  std::unique_ptr<ReadFile> open(std::string_view relative, IoMode mode) const override;
  std::optional<FileInfo> stat(std::string_view relative) const override {
    return directory_.stat(relative);
  }
  std::vector<FileInfo> list(std::string_view relative) const override {
    return directory_.list(relative);
  }

 private:
  const Directory& directory_;
  const Seal& seal_;
  const OnDifference& on_difference_;
  mutable std::mutex mutex_;
};

}  // namespace tessera

#pragma once
// FilePool: the source files of one transfer, opened when first needed, the least recently used
// closed past a limit. Thread-safe; a handle stays open while a caller holds it.
#include <tessera/state/manifest.h>
#include <tessera/storage/file_system.h>

#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>

namespace tessera {

/// Files from this size on are read (and written) past the page cache.
inline constexpr std::uint64_t kDirectFromBytes = std::uint64_t{1} << 20;

inline IoMode io_mode_for(std::uint64_t size_bytes) {
  return size_bytes >= kDirectFromBytes ? IoMode::kDirect : IoMode::kBuffered;
}

class FilePool {
 public:
  FilePool(const Manifest& manifest, const Directory& directory, std::size_t max_open = 256)
      : manifest_(manifest), directory_(directory), max_open_(max_open) {}
  std::shared_ptr<const ReadFile> get(std::uint32_t file);
  const std::string& path(std::uint32_t file) const { return manifest_.files[file].path; }

 private:
  struct Slot {
    std::shared_ptr<const ReadFile> file;
    std::list<std::uint32_t>::iterator use;
  };
  const Manifest& manifest_;
  const Directory& directory_;
  std::size_t max_open_;
  std::mutex mutex_;
  std::unordered_map<std::uint32_t, Slot> slots_;
  std::list<std::uint32_t> uses_;  // most recent first
};

}  // namespace tessera

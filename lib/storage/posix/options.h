#pragma once
// Options of the real file system: environment variables, and switches by which tests reach rare
// paths.
#include <tessera/storage/file_system.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>

namespace tessera::storage {

/// Rungs of the ladder from O_DIRECT down to the page cache.
enum class DirectPolicy : std::uint8_t {
  kAuto,    // direct where it works, else buffered
  kNever,   // TESSERA_IO=buffered
  kAlways,  // TESSERA_IO=direct: what cannot go direct is an error
};

/// Where O_DIRECT is pretended to be refused.
enum class DirectRefusal : std::uint8_t { kNone, kOpen, kTransfer };

struct PosixOptions {
  DirectPolicy direct = DirectPolicy::kAuto;
  bool log = false;                                       // TESSERA_IO_LOG is set
  std::size_t max_transfer_bytes = std::size_t{1} << 30;  // Linux moves at most 0x7ffff000 a call
  bool use_openat2 = true;
  bool use_renameat2 = true;
  DirectRefusal refuse_direct = DirectRefusal::kNone;
};

/// Options of the environment (TESSERA_IO, TESSERA_IO_LOG). An unknown TESSERA_IO throws
/// kInvalidArgument.
PosixOptions options_from_environment();

/// Options plus the messages already logged, shared by a file system and its open files.
class PosixContext {
 public:
  explicit PosixContext(const PosixOptions& options) : options_(options) {}
  const PosixOptions& options() const { return options_; }
  /// Most bytes of one direct call: a multiple of the alignment, at least one block.
  std::size_t max_direct_bytes() const {
    const std::size_t blocks = options_.max_transfer_bytes / kIoAlignment;
    return (blocks == 0 ? 1 : blocks) * kIoAlignment;
  }
  /// One line to stderr, once per `topic`, and only when logging was asked for.
  void log_once(const std::string& topic, const std::string& text) const;
  /// O_DIRECT was refused: logs the step down, or throws where TESSERA_IO=direct forbids it.
  void step_down(const std::string& path, int error) const;

 private:
  PosixOptions options_;
  mutable std::mutex mutex_;
  mutable std::set<std::string> logged_;
};

}  // namespace tessera::storage

namespace tessera {
std::unique_ptr<FileSystem> make_posix_file_system(const storage::PosixOptions& options);
}  // namespace tessera

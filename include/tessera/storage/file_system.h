#pragma once
// FileSystem: every byte and name the toolkit touches goes through here, so that memory, faulty,
// counting and simulated disks can stand in for the real one.
//
// Reading is confined: a Directory is held open, and files below it are opened by relative path
// without leaving it (openat2 RESOLVE_BENEATH | NO_SYMLINKS | NO_MAGICLINKS, or component-wise
// O_NOFOLLOW); only regular files open. Errors: kNotFound for an absent name, kIo naming path and
// errno otherwise; ENOSPC, EDQUOT and EFBIG are kResourceExhausted. Thread-safety: read_at and
// write_at may be called from several threads at once.
#include <tessera/base/bytes.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

enum class FileType : std::uint8_t { kRegular, kDirectory, kSymlink, kOther };

struct FileInfo {
  std::string name;  // last component (list), or as asked (stat)
  FileType type = FileType::kRegular;
  std::uint64_t size_bytes = 0;
  std::int64_t mtime_ns = 0;
  bool is_mount_point = false;  // by stat() only
  // Which file it is, and when anything of it was changed last; 0 where the file system keeps no
  // such numbers.
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::int64_t ctime_ns = 0;
};

/// How bulk data should reach the disk.
enum class IoMode : std::uint8_t { kBuffered, kDirect };

/// Offsets, lengths and addresses of direct I/O are multiples of this.
inline constexpr std::uint64_t kIoAlignment = 4096;

class ReadFile {
 public:
  virtual ~ReadFile() = default;
  virtual std::uint64_t size_bytes() const = 0;
  virtual const std::string& path() const = 0;  // for messages
  /// Fills all of `out` from `offset`. Past the end: kCorrupt "file ends at ...". With
  /// IoMode::kDirect, requests whose offset, length and address are aligned bypass the page cache;
  /// the tail past the end may be asked for (rounded up to kIoAlignment) and is left unspecified.
  virtual void read_at(std::uint64_t offset, MutableBytes out) const = 0;
};

class WriteFile {
 public:
  virtual ~WriteFile() = default;
  virtual const std::string& path() const = 0;
  /// Writes all of `data` at `offset`. Aligned middles (data.data() congruent to offset modulo
  /// kIoAlignment) go direct when the file was opened so; edges go through the page cache.
  virtual void write_at(std::uint64_t offset, ByteView data) = 0;
  /// Reserves room for the first `size_bytes` and sets the size; ENOSPC shows here.
  virtual void allocate(std::uint64_t size_bytes) = 0;
  /// Durable data. An error is final: the file is poisoned, never synced again.
  virtual void sync() = 0;
  /// Checked close. The destructor closes silently.
  virtual void close() = 0;
};

/// A held lock (a lease on a staging folder). Released by the destructor or the process' end.
class FileLock {
 public:
  virtual ~FileLock() = default;
};

/// A folder held open for reading; names below it cannot escape.
class Directory {
 public:
  virtual ~Directory() = default;
  virtual const std::string& path() const = 0;
  /// `relative`: no "..", not absolute, no NUL; symbolic links refused. Escapes: kCorrupt.
  virtual std::unique_ptr<ReadFile> open(std::string_view relative,
                                         IoMode mode = IoMode::kBuffered) const = 0;
  /// nullopt when absent. Links are reported as kSymlink, not followed.
  virtual std::optional<FileInfo> stat(std::string_view relative) const = 0;
  /// Entries of the folder (or of a folder below it), sorted bytewise by name.
  virtual std::vector<FileInfo> list(std::string_view relative = "") const = 0;
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;

  // Looking. `path` is what a user typed: links are followed.
  virtual std::optional<FileInfo> stat(const std::string& path) const = 0;
  virtual std::unique_ptr<Directory> open_directory(const std::string& path) const = 0;
  /// Absolute path without links or "..", for comparing places. The last component may be absent.
  virtual std::string canonical(const std::string& path) const = 0;
  virtual std::uint64_t free_bytes(const std::string& path) const = 0;
  /// True: what lies in this folder is in memory (tmpfs, ramfs), so that small writes are as fast
  /// as large ones. Only advice: false if it is not known.
  virtual bool in_memory(const std::string& path) const = 0;

  // Changing. Paths are ours; the last component is never followed when it is a link.
  virtual std::unique_ptr<WriteFile> create(const std::string& path,
                                            IoMode mode) = 0;  // O_EXCL | O_NOFOLLOW
  virtual std::unique_ptr<WriteFile> reopen(const std::string& path,
                                            IoMode mode) = 0;  // existing, for --resume
  virtual void create_directory(const std::string& path) = 0;  // kAlreadyExists if present
  virtual void rename(const std::string& from, const std::string& to) = 0;  // replaces
  virtual void rename_new(const std::string& from,
                          const std::string& to) = 0;  // RENAME_NOREPLACE: kAlreadyExists
  virtual bool exchange(const std::string& a, const std::string& b) = 0;  // false: unsupported here
  virtual void remove_file(const std::string& path) = 0;
  virtual void remove_tree(
      const std::string& path) = 0;  // depth first, links not followed; absent is fine
  virtual void sync_directory(const std::string& path) = 0;
  /// Takes the lock file at `path`, made if absent; the lock removes it when released. nullptr when
  /// another process (or another holder in this one) has it; kUnsupported where the file system has
  /// no locks.
  virtual std::unique_ptr<FileLock> try_lock(const std::string& path) = 0;
};

/// The real one. Files opened with IoMode::kDirect use O_DIRECT where the file system takes it and
/// fall back to the page cache where not, logged to stderr when TESSERA_IO_LOG is set.
/// TESSERA_IO=buffered never tries; TESSERA_IO=direct makes a refusal an error (kUnsupported).
std::unique_ptr<FileSystem> make_posix_file_system();

}  // namespace tessera

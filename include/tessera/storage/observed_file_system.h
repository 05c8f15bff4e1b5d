#pragma once
// ObservedFileSystem: forwards every call to another file system and calls a derived class before
// and after each one. The counting and faulty file systems and the simulated disk are such classes.
// Ownership: the inner file system is borrowed and must outlive this one and every file opened
// through it; so must this one. Thread-safety: as the inner one's, if the derived class' before()
// and after() are thread-safe.
#include <tessera/storage/file_system.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

namespace tessera {

enum class IoOp : std::uint8_t {
  kStat,
  kOpenDirectory,
  kCanonical,
  kFreeBytes,
  kStatEntry,  // Directory::stat
  kList,
  kOpen,
  kRead,
  kCreate,
  kReopen,
  kWrite,
  kAllocate,
  kSync,
  kClose,
  kCreateDirectory,
  kRename,
  kRenameNew,
  kExchange,
  kRemoveFile,
  kRemoveTree,
  kSyncDirectory,
  kLock,
};

/// "write", "sync folder", ...: the verb of a message.
std::string_view io_op_name(IoOp op);
/// A set of operations, for filters.
constexpr std::uint32_t io_op_bit(IoOp op) { return std::uint32_t{1} << static_cast<int>(op); }
inline constexpr std::uint32_t kAllIoOps = 0xffffffff;

struct IoEvent {
  IoOp op;
  const std::string& path;
  std::string_view other = {};  // second path of renames and exchanges
  std::uint64_t offset = 0;     // reads, writes
  std::uint64_t length = 0;     // reads, writes; the size of an allocate
  ByteView data = {};           // writes
  std::uint64_t handle = 0;     // one number per opened file, from create, reopen or open to close
};

class ObservedFileSystem : public FileSystem {
 public:
  explicit ObservedFileSystem(FileSystem& inner) : inner_(inner) {}

  std::optional<FileInfo> stat(const std::string& path) const override;
  std::unique_ptr<Directory> open_directory(const std::string& path) const override;
  std::string canonical(const std::string& path) const override;
  std::uint64_t free_bytes(const std::string& path) const override;
  /// Not observed: it cannot fail.
  bool in_memory(const std::string& path) const override { return inner_.in_memory(path); }
  std::unique_ptr<WriteFile> create(const std::string& path, IoMode mode) override;
  std::unique_ptr<WriteFile> reopen(const std::string& path, IoMode mode) override;
  void create_directory(const std::string& path) override;
  void rename(const std::string& from, const std::string& to) override;
  void rename_new(const std::string& from, const std::string& to) override;
  bool exchange(const std::string& a, const std::string& b) override;
  void remove_file(const std::string& path) override;
  void remove_tree(const std::string& path) override;
  void sync_directory(const std::string& path) override;
  std::unique_ptr<FileLock> try_lock(const std::string& path) override;

 protected:
  /// May throw: then the operation does not happen.
  virtual void before(const IoEvent&) const {}
  /// The operation succeeded (an exchange answered true, a lock was obtained). What it throws the
  /// caller sees.
  virtual void after(const IoEvent&) const {}
  FileSystem& inner() const { return inner_; }

 private:
  template <class F>
  auto observe(const IoEvent& event, F&& call) const;
  friend class ObservedReadFile;
  friend class ObservedWriteFile;
  friend class ObservedDirectory;
  std::uint64_t next_handle() const { return ++handles_; }

  FileSystem& inner_;
  mutable std::atomic<std::uint64_t> handles_{0};
};

}  // namespace tessera

#pragma once
// MemoryFileSystem: a complete file system in memory, links and locks included, for tests and for
// results that never touch a disk. Paths start at "/"; "a" and "/a" are the same. Syncs do nothing.
// Thread-safety: all functions may be called from several threads at once. Open files keep their
// content alive after their name is gone, but not after the file system is.
#include <tessera/storage/file_system.h>

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <string>

namespace tessera {

struct MemoryFileSystemOptions {
  bool has_exchange =
      true;  // false: exchange() answers false, as on file systems without RENAME_EXCHANGE
  bool has_locks = true;  // false: try_lock() throws kUnsupported
  std::uint64_t capacity_bytes = std::numeric_limits<std::uint64_t>::max() / 2;
};

class MemoryFileSystem final : public FileSystem {
 public:
  explicit MemoryFileSystem(const MemoryFileSystemOptions& options = {});
  ~MemoryFileSystem() override;

  std::optional<FileInfo> stat(const std::string& path) const override;
  std::unique_ptr<Directory> open_directory(const std::string& path) const override;
  std::string canonical(const std::string& path) const override;
  std::uint64_t free_bytes(const std::string& path) const override;
  bool in_memory(const std::string&) const override { return true; }
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

  // Short cuts past the interface, for setting a scene and looking at the result.
  /// Creates or replaces a file and the folders above it.
  void write_file(const std::string& path, ByteView content);
  void make_directories(const std::string& path);
  void add_symlink(const std::string& path, const std::string& target);
  Bytes read_file(const std::string& path) const;
  /// Everything below `path`: path relative to it -> content. Folders end in "/", links in "@" with
  /// their target as content.
  std::map<std::string, std::string> contents(const std::string& path = "/") const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace tessera

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <tessera/base/error.h>
#include <tessera/base/interrupted.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "lib/storage/path_rules.h"
#include "lib/storage/posix/confined.h"
#include "lib/storage/posix/errno_error.h"
#include "lib/storage/posix/lock.h"
#include "lib/storage/posix/newer_calls.h"
#include "lib/storage/posix/options.h"
#include "lib/storage/posix/write_file.h"

namespace tessera {

namespace storage {

namespace {

bool means_absent(int error) { return error == ENOENT || error == ENOTDIR; }
bool means_unsupported(int error) {
  return error == ENOSYS || error == EINVAL || error == EOPNOTSUPP;
}

std::string real_path(const std::string& path, int& error) {
  char* resolved = ::realpath(path.c_str(), nullptr);
  error = resolved == nullptr ? errno : 0;
  std::string text = resolved == nullptr ? "" : resolved;
  std::free(resolved);
  return text;
}

void check_no_nul(const std::string& path) {
  if (path.empty() || path.find('\0') != std::string::npos)
    fail(Code::kInvalidArgument, "a path is empty or holds a NUL byte");
}

class PosixFileSystem final : public FileSystem {
 public:
  explicit PosixFileSystem(const PosixOptions& options)
      : context_(std::make_shared<const PosixContext>(options)) {}

  std::optional<FileInfo> stat(const std::string& path) const override {
    check_no_nul(path);
    struct stat status;
    if (::stat(path.c_str(), &status) == 0) return file_info(path, status);
    if (means_absent(errno)) return std::nullopt;
    fail_errno("stat", path, errno);
  }

  std::unique_ptr<Directory> open_directory(const std::string& path) const override {
    check_no_nul(path);
    Interruptions interruptions;
    UniqueFd fd;
    do {
      fd.reset(::open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    } while (!fd && interruptions.retry());
    if (!fd) fail_errno("open folder", path, errno);
    return make_posix_directory(context_, {std::move(fd), path});
  }

  std::string canonical(const std::string& path) const override {
    check_no_nul(path);
    int error = 0;
    std::string resolved = real_path(path, error);
    if (error == 0) return resolved;
    const SplitPath split = split_path(path);
    if (error != ENOENT || split.name == ".." || split.name == ".")
      fail_errno("resolve", path, error);
    resolved = real_path(split.parent, error);
    if (error != 0) fail_errno("resolve", split.parent, error);
    return join_path(resolved, split.name);
  }

  std::uint64_t free_bytes(const std::string& path) const override {
    check_no_nul(path);
    Interruptions interruptions;
    struct statvfs volume;
    std::string at = path;
    while (::statvfs(at.c_str(), &volume) != 0) {
      if (interruptions.retry()) continue;
      const std::string parent = split_path(at).parent;
      if (!means_absent(errno) || parent == at) fail_errno("ask the free space of", path, errno);
      at = parent;
    }
    return std::uint64_t{volume.f_bavail} * volume.f_frsize;
  }

  bool in_memory(const std::string& path) const override {
    struct statfs volume;
    return path.find('\0') == std::string::npos && ::statfs(path.c_str(), &volume) == 0 &&
           (volume.f_type == TMPFS_MAGIC || volume.f_type == RAMFS_MAGIC);
  }

  std::unique_ptr<WriteFile> create(const std::string& path, IoMode mode) override {
    return open_posix_write_file(context_, path, mode, /*create_new=*/true);
  }
  std::unique_ptr<WriteFile> reopen(const std::string& path, IoMode mode) override {
    return open_posix_write_file(context_, path, mode, /*create_new=*/false);
  }

  void create_directory(const std::string& path) override {
    if (::mkdir(path.c_str(), 0777) != 0) fail_errno("create folder", path, errno);
  }

  void rename(const std::string& from, const std::string& to) override {
    if (::rename(from.c_str(), to.c_str()) != 0) fail_rename(from, to, errno);
  }

  void rename_new(const std::string& from, const std::string& to) override {
    if (context_->options().use_renameat2) {
      if (rename_with_flags(from, to, RENAME_NOREPLACE) == 0) return;
      if (!means_unsupported(errno)) fail_rename(from, to, errno);
    }
    rename_new_without_flags(from, to);
  }

  bool exchange(const std::string& a, const std::string& b) override {
    if (!context_->options().use_renameat2) return false;
    if (rename_with_flags(a, b, RENAME_EXCHANGE) == 0) return true;
    if (means_unsupported(errno)) return false;
    fail_rename(a, b, errno);
  }

  void remove_file(const std::string& path) override {
    if (::unlink(path.c_str()) != 0) fail_errno("remove", path, errno);
  }

  void remove_tree(const std::string& path) override {
    std::error_code error;  // the library walks by descriptors and does not follow links
    std::filesystem::remove_all(path, error);
    if (error) fail_errno("remove", path, error.value());
  }

  void sync_directory(const std::string& path) override {
    Interruptions interruptions;
    UniqueFd fd;
    do {
      fd.reset(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    } while (!fd && interruptions.retry());
    if (!fd) fail_errno("open folder", path, errno);
    if (::fsync(fd.get()) != 0) fail_errno("sync folder", path, errno);
    if (::close(fd.release()) != 0) fail_errno("close folder", path, errno);
  }

  std::unique_ptr<FileLock> try_lock(const std::string& path) override {
    return try_posix_lock(path);
  }

 private:
  [[noreturn]] static void fail_rename(const std::string& from, const std::string& to, int error) {
    if (error == EEXIST || error == ENOTEMPTY)
      fail(Code::kAlreadyExists, fmt::format("{} already exists", to));
    fail_errno("rename", fmt::format("{} to {}", from, to), error);
  }

  // Where RENAME_NOREPLACE is unknown: a hard link refuses an existing name by itself; a folder
  // only replaces an empty folder, and that after a look.
  static void rename_new_without_flags(const std::string& from, const std::string& to) {
    struct stat status;
    if (::lstat(from.c_str(), &status) != 0) fail_rename(from, to, errno);
    if (!S_ISDIR(status.st_mode) && ::link(from.c_str(), to.c_str()) == 0) {
      if (::unlink(from.c_str()) != 0) fail_errno("remove", from, errno);
      return;
    }
    if (!S_ISDIR(status.st_mode) && errno == EEXIST) fail_rename(from, to, EEXIST);
    struct stat there;
    if (::lstat(to.c_str(), &there) == 0) fail_rename(from, to, EEXIST);
    if (errno != ENOENT) fail_rename(from, to, errno);
    if (::rename(from.c_str(), to.c_str()) != 0) fail_rename(from, to, errno);
  }

  std::shared_ptr<const PosixContext> context_;
};

}  // namespace

}  // namespace storage

std::unique_ptr<FileSystem> make_posix_file_system() {
  return make_posix_file_system(storage::options_from_environment());
}

std::unique_ptr<FileSystem> make_posix_file_system(const storage::PosixOptions& options) {
  return std::make_unique<storage::PosixFileSystem>(options);
}

}  // namespace tessera

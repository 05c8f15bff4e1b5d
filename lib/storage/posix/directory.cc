#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "lib/storage/path_rules.h"
#include "lib/storage/posix/confined.h"
#include "lib/storage/posix/errno_error.h"
#include "lib/storage/posix/newer_calls.h"

namespace tessera::storage {

namespace {

struct CloseDirectory {
  void operator()(DIR* stream) const { ::closedir(stream); }
};

// Entries of an open folder; what vanishes while we look is left out.
std::vector<FileInfo> read_entries(UniqueFd fd, const std::string& path) {
  const std::unique_ptr<DIR, CloseDirectory> stream(::fdopendir(fd.get()));
  if (!stream) fail_errno("list", path, errno);
  const int directory = fd.release();
  std::vector<FileInfo> entries;
  for (;;) {
    errno = 0;
    const struct dirent* entry = ::readdir(stream.get());
    if (entry == nullptr) {
      if (errno != 0) fail_errno("list", path, errno);
      break;
    }
    if (std::strcmp(entry->d_name, ".") == 0 || std::strcmp(entry->d_name, "..") == 0) continue;
    struct stat status;
    if (::fstatat(directory, entry->d_name, &status, AT_SYMLINK_NOFOLLOW) != 0) {
      if (errno == ENOENT) continue;
      fail_errno("stat", join_path(path, entry->d_name), errno);
    }
    entries.push_back(file_info(entry->d_name, status));
  }
  std::sort(entries.begin(), entries.end(),
            [](const FileInfo& a, const FileInfo& b) { return a.name < b.name; });
  return entries;
}

// Answered from what the kernel has cached, without asking a server. Kernels before 5.8 do not say;
// then false.
bool is_mount_point(int fd) {
  struct statx status;
  return ask_statx(fd, AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, status) == 0 &&
         (status.stx_attributes_mask & status.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0;
}

class PosixDirectory final : public Directory {
 public:
  PosixDirectory(std::shared_ptr<const PosixContext> context, HeldDirectory held)
      : context_(std::move(context)),
        held_(std::make_shared<const HeldDirectory>(std::move(held))) {}

  const std::string& path() const override { return held_->path; }

  std::unique_ptr<ReadFile> open(std::string_view relative, IoMode mode) const override {
    confined_components(relative, held_->path);  // refuses the folder itself
    const std::string path = join_path(held_->path, relative);
    // O_NONBLOCK: a pipe without a writer must not hang us before we see that it is one.
    OpenResult opened =
        open_beneath(*context_, *held_, relative, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
    if (opened.error == ENXIO || opened.error == ENODEV) fail_not_regular(path);
    if (opened.error != 0) fail_errno("open", path, opened.error);
    struct stat status;
    if (::fstat(opened.fd.get(), &status) != 0) fail_errno("stat", path, errno);
    if (!S_ISREG(status.st_mode)) fail_not_regular(path);
    return make_posix_read_file(context_, held_, std::string(relative), std::move(opened.fd),
                                status, mode);
  }

  std::optional<FileInfo> stat(std::string_view relative) const override {
    confined_components(relative, held_->path);
    const OpenResult opened = open_beneath(*context_, *held_, relative, O_PATH | O_NOFOLLOW);
    if (opened.error == ENOENT || opened.error == ENOTDIR) return std::nullopt;
    const std::string path = join_path(held_->path, relative);
    if (opened.error != 0) fail_errno("stat", path, opened.error);
    struct stat status;
    if (::fstat(opened.fd.get(), &status) != 0) fail_errno("stat", path, errno);
    FileInfo info = file_info(std::string(relative), status);
    info.is_mount_point = is_mount_point(opened.fd.get());
    return info;
  }

  std::vector<FileInfo> list(std::string_view relative) const override {
    OpenResult opened =
        open_beneath(*context_, *held_, relative, O_RDONLY | O_DIRECTORY | O_NONBLOCK);
    const std::string path = join_path(held_->path, relative);
    if (opened.error != 0) fail_errno("list", path, opened.error);
    return read_entries(std::move(opened.fd), path);
  }

 private:
  std::shared_ptr<const PosixContext> context_;
  std::shared_ptr<const HeldDirectory> held_;
};

}  // namespace

std::unique_ptr<Directory> make_posix_directory(std::shared_ptr<const PosixContext> context,
                                                HeldDirectory held) {
  return std::make_unique<PosixDirectory>(std::move(context), std::move(held));
}

}  // namespace tessera::storage

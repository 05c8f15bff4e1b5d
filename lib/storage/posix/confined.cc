#include "lib/storage/posix/confined.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/syscall.h>
#include <tessera/base/interrupted.h>

#include <cerrno>
#include <vector>

#include "lib/storage/path_rules.h"

namespace tessera::storage {

namespace {

constexpr int kMostAttempts = 100;

int open_retrying(int directory, const char* name, int flags) {
  Interruptions interruptions;
  int fd;
  int attempts = 0;
  do {  // ESTALE: the server replaced the file while its old handle was still cached here
    fd = ::openat(directory, name, flags | O_CLOEXEC);
  } while (fd < 0 && (interruptions.retry() || (errno == ESTALE && ++attempts < kMostAttempts)));
  return fd;
}

bool is_link(int directory, const char* name) {
  struct stat status;
  return ::fstatat(directory, name, &status, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(status.st_mode);
}

// One step per component, so that the component that is a link can be named.
OpenResult walk(const HeldDirectory& directory, const std::vector<std::string>& components,
                int flags) {
  UniqueFd held;
  int at = directory.fd.get();
  std::string path = directory.path;
  for (std::size_t i = 0; i < components.size(); ++i) {
    const bool last = i + 1 == components.size();
    const char* name = components[i].c_str();
    path = join_path(path, components[i]);
    const int step_flags = (last ? flags : O_PATH | O_DIRECTORY) | O_NOFOLLOW;
    UniqueFd next(open_retrying(at, name, step_flags));
    if (!next) {
      const int error = errno;
      if ((error == ELOOP || error == ENOTDIR) && is_link(at, name)) fail_link(path);
      return {UniqueFd(), error};
    }
    held = std::move(next);
    at = held.get();
  }
  return {std::move(held), 0};
}

int openat2_beneath(int directory, const char* path, int flags) {
  struct open_how how = {};
  how.flags = static_cast<std::uint64_t>(flags | O_CLOEXEC);
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS;
  Interruptions interruptions;
  long fd;
  int attempts = 0;
  do {  // EAGAIN: a rename raced with the lookup; ESTALE as above
    fd = ::syscall(SYS_openat2, directory, path, &how, sizeof how);
  } while (fd < 0 && (interruptions.retry() ||
                      ((errno == EAGAIN || errno == ESTALE) && ++attempts < kMostAttempts)));
  return static_cast<int>(fd);
}

std::int64_t nanoseconds(const struct timespec& time) {
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

}  // namespace

OpenResult open_beneath(const PosixContext& context, const HeldDirectory& directory,
                        std::string_view relative, int flags) {
  const std::vector<std::string> components =
      confined_components(relative, directory.path, /*allow_empty=*/true);
  if (components.empty()) {
    UniqueFd fd(open_retrying(directory.fd.get(), ".", flags));
    const int error = fd ? 0 : errno;
    return {std::move(fd), error};
  }
  if (!context.options().use_openat2) return walk(directory, components, flags);
  std::string path;
  for (const std::string& component : components) path = join_path(path, component);
  UniqueFd fd(openat2_beneath(directory.fd.get(), path.c_str(), flags));
  if (fd) return {std::move(fd), 0};
  const int error = errno;
  switch (error) {
    case ENOSYS:  // an old kernel
    case EPERM:   // a sandbox that does not know the call
    case ELOOP:   // a link: the walk names it
    case EXDEV:
      return walk(directory, components, flags);
    default:
      return {UniqueFd(), error};
  }
}

FileType file_type(mode_t mode) {
  if (S_ISREG(mode)) return FileType::kRegular;
  if (S_ISDIR(mode)) return FileType::kDirectory;
  if (S_ISLNK(mode)) return FileType::kSymlink;
  return FileType::kOther;
}

FileInfo file_info(std::string name, const struct stat& status) {
  FileInfo info;
  info.name = std::move(name);
  info.type = file_type(status.st_mode);
  info.size_bytes = static_cast<std::uint64_t>(status.st_size);
  info.mtime_ns = nanoseconds(status.st_mtim);
  info.device = status.st_dev;
  info.inode = status.st_ino;
  info.ctime_ns = nanoseconds(status.st_ctim);
  return info;
}

}  // namespace tessera::storage

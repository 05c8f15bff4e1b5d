#include "lib/storage/posix/lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <tessera/base/error.h>
#include <tessera/base/interrupted.h>

#include <cerrno>
#include <system_error>

#include "lib/storage/path_rules.h"
#include "lib/storage/posix/errno_error.h"
#include "lib/storage/posix/unique_fd.h"

namespace tessera::storage {

namespace {

enum class Named { kYes, kNo, kUnknown };  // kUnknown: errno says why

Named names_this_file(const std::string& path, int fd) {
  struct stat named;
  struct stat held;
  if (::fstat(fd, &held) != 0) return Named::kUnknown;
  if (::lstat(path.c_str(), &named) != 0) return errno == ENOENT ? Named::kNo : Named::kUnknown;
  const bool same = named.st_dev == held.st_dev && named.st_ino == held.st_ino;
  return same ? Named::kYes : Named::kNo;
}

class PosixLock final : public FileLock {
 public:
  PosixLock(std::string path, UniqueFd fd) : path_(std::move(path)), fd_(std::move(fd)) {}
  ~PosixLock() override {
    // Removed while still held: whoever opened the old file meanwhile finds that the name is not
    // that file any more.
    if (names_this_file(path_, fd_.get()) == Named::kYes) ::unlink(path_.c_str());
  }

 private:
  std::string path_;
  UniqueFd fd_;
};

// 0, EAGAIN when held elsewhere, or the error.
int lock_whole_file(int fd) {
  struct flock range = {};
  range.l_type = F_WRLCK;
  range.l_whence = SEEK_SET;
  Interruptions interruptions;
  for (;;) {
    if (::fcntl(fd, F_OFD_SETLK, &range) == 0) return 0;
    if (errno == EACCES) return EAGAIN;
    if (!interruptions.retry()) return errno;
  }
}

}  // namespace

std::unique_ptr<FileLock> try_posix_lock(const std::string& path) {
  for (int attempt = 0; attempt < 1000; ++attempt) {
    Interruptions interruptions;
    UniqueFd fd;
    do {
      fd.reset(::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0666));
    } while (!fd && interruptions.retry());
    if (!fd && errno == ELOOP) fail_link(path);
    // The lock is the first thing made there: what fails is writing in its folder.
    if (!fd) fail_errno("write in", split_path(path).parent, errno);
    const int error = lock_whole_file(fd.get());
    if (error == EAGAIN) return nullptr;
    if (error == ENOLCK || error == EOPNOTSUPP || error == ENOSYS || error == EINVAL) {
      ::unlink(path.c_str());
      fail(Code::kUnsupported, fmt::format("this file system has no locks ({}): {}",
                                           std::system_category().message(error), path));
    }
    if (error != 0) fail_errno("lock", path, error);
    const Named named = names_this_file(path, fd.get());
    if (named == Named::kYes) return std::make_unique<PosixLock>(path, std::move(fd));
    if (named == Named::kUnknown) fail_errno("lock", path, errno);
    // The previous holder removed the file between our open and our lock: take the new one.
  }
  return nullptr;
}

}  // namespace tessera::storage

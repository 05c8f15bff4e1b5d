#include "lib/storage/posix/write_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <tessera/base/error.h>
#include <tessera/base/interrupted.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <mutex>

#include "lib/storage/path_rules.h"
#include "lib/storage/posix/errno_error.h"
#include "lib/storage/posix/unique_fd.h"

namespace tessera::storage {

namespace {

// Where a request is cut: [0, head) and [tail, size) through the page cache, [head, tail) direct.
// The cuts are page borders of the file, so that no page is ever written both ways by one request.
struct Cuts {
  std::size_t head;
  std::size_t tail;
};

Cuts cut(std::uint64_t offset, ByteView data) {
  const auto address = reinterpret_cast<std::uintptr_t>(data.data());
  const Cuts all_buffered{data.size(), data.size()};
  if ((address - offset) % kIoAlignment != 0) return all_buffered;
  const std::size_t head = (kIoAlignment - offset % kIoAlignment) % kIoAlignment;
  if (head >= data.size()) return all_buffered;
  const std::size_t middle = (data.size() - head) / kIoAlignment * kIoAlignment;
  if (middle == 0) return all_buffered;
  return {head, head + middle};
}

class PosixWriteFile final : public WriteFile {
 public:
  PosixWriteFile(std::shared_ptr<const PosixContext> context, std::string path, UniqueFd fd,
                 IoMode mode)
      : context_(std::move(context)),
        path_(std::move(path)),
        fd_(std::move(fd)),
        direct_wanted_(mode == IoMode::kDirect &&
                       context_->options().direct != DirectPolicy::kNever) {}

  const std::string& path() const override { return path_; }

  void write_at(std::uint64_t offset, ByteView data) override {
    check_usable();
    if (!direct_wanted_) return write_buffered(offset, data);
    const Cuts cuts = cut(offset, data);
    write_buffered(offset, data.first(cuts.head));
    std::size_t done = cuts.head;
    if (cuts.tail > cuts.head)
      done += write_direct(offset + done, data.subspan(done, cuts.tail - cuts.head));
    write_buffered(offset + done, data.subspan(done));
  }

  void allocate(std::uint64_t size_bytes) override {
    check_usable();
    reserve(size_bytes);
    struct stat status;
    if (::fstat(fd_.get(), &status) != 0) fail_errno("stat", path_, errno);
    if (static_cast<std::uint64_t>(status.st_size) == size_bytes) return;
    Interruptions interruptions;
    int result;
    do {
      result = ::ftruncate(fd_.get(), static_cast<off_t>(size_bytes));
    } while (result != 0 && interruptions.retry());
    if (result != 0) fail_errno("set the size of", path_, errno);
  }

  void sync() override {
    check_usable();
    // Both descriptors: each reports the write-back errors that happened since it was opened. After
    // the first error nothing of this file is synced again.
    if (::fsync(fd_.get()) != 0) poison("sync", errno);
    if (direct_fd_ && ::fdatasync(direct_fd_.get()) != 0) poison("sync", errno);
  }

  void close() override {
    check_usable();
    int error = 0;
    // Never retried: after a failed close the descriptor is gone.
    if (direct_fd_ && ::close(direct_fd_.release()) != 0) error = errno;
    if (::close(fd_.release()) != 0 && error == 0) error = errno;
    if (error != 0) poison("close", error);
  }

 private:
  void check_usable() const {
    if (poisoned_.load(std::memory_order_acquire)) {
      fail(
          Code::kIo,
          fmt::format("{} cannot be used any more: an earlier write, sync or close failed", path_));
    }
    TESSERA_CHECK(fd_);
  }

  // What reached the disk is unknown from here on; a later success would be a lie.
  [[noreturn]] void poison(const char* verb, int error) {
    poisoned_.store(true, std::memory_order_release);
    fail_errno(verb, path_, error);
  }

  void write_buffered(std::uint64_t offset, ByteView data) {
    Interruptions interruptions;
    std::size_t done = 0;
    while (done < data.size()) {
      const std::size_t length =
          std::min(data.size() - done, context_->options().max_transfer_bytes);
      const ssize_t put =
          ::pwrite(fd_.get(), data.data() + done, length, static_cast<off_t>(offset + done));
      if (put > 0) {
        done += static_cast<std::size_t>(put);
        interruptions.clear();
      } else if (put == 0) {
        poison("write", EIO);
      } else if (!interruptions.retry()) {
        poison("write", errno);
      }
    }
  }

  // Bytes written before the direct path gave up: at a refusal or a ragged short write. The caller
  // goes on buffered.
  std::size_t write_direct(std::uint64_t offset, ByteView data) {
    std::call_once(direct_once_, [this] { open_direct(); });
    Interruptions interruptions;
    std::size_t done = 0;
    while (done < data.size() && direct_works_.load(std::memory_order_relaxed)) {
      const std::size_t length = std::min(data.size() - done, context_->max_direct_bytes());
      const ssize_t put = transfer(offset + done, data.subspan(done, length));
      if (put > 0) {
        done += static_cast<std::size_t>(put);
        interruptions.clear();
        if (done % kIoAlignment != 0) break;
      } else if (put == 0) {
        break;
      } else if (errno == EINVAL) {
        context_->step_down(path_, EINVAL);
        direct_works_.store(false, std::memory_order_relaxed);
      } else if (!interruptions.retry()) {
        poison("write", errno);
      }
    }
    return done;
  }

  ssize_t transfer(std::uint64_t offset, ByteView data) {
    if (context_->options().refuse_direct == DirectRefusal::kTransfer) {
      errno = EINVAL;
      return -1;
    }
    return ::pwrite(direct_fd_.get(), data.data(), data.size(), static_cast<off_t>(offset));
  }

  void open_direct() {
    UniqueFd fd;
    int error = EINVAL;
    if (context_->options().refuse_direct != DirectRefusal::kOpen) {
      fd.reset(::open(path_.c_str(), O_WRONLY | O_DIRECT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
      error = fd ? ESTALE : errno;  // ESTALE: the name is another file by now
    }
    struct stat direct;
    struct stat buffered;
    if (fd && ::fstat(fd.get(), &direct) == 0 && ::fstat(fd_.get(), &buffered) == 0 &&
        direct.st_dev == buffered.st_dev && direct.st_ino == buffered.st_ino) {
      direct_fd_ = std::move(fd);
      direct_works_.store(true, std::memory_order_relaxed);
    } else {
      context_->step_down(path_, error);
    }
  }

  void reserve(std::uint64_t size_bytes) {
    if (size_bytes == 0) return;
    check_room(size_bytes);
    Interruptions interruptions;
    int result;
    do {
      result = ::fallocate(fd_.get(), 0, 0, static_cast<off_t>(size_bytes));
    } while (result != 0 && interruptions.retry());
    if (result == 0) return;
    if (errno != EOPNOTSUPP && errno != ENOSYS) fail_errno("reserve room for", path_, errno);
    context_->log_once("fallocate",
                       fmt::format("no fallocate here, sizes are only compared with free space; "
                                   "first at {}",
                                   path_));
  }

  // Before fallocate: ext4 takes every free block before it says that they are too few, and for
  // that moment everybody else on the disk fails too.
  void check_room(std::uint64_t size_bytes) const {
    struct stat status;
    struct statvfs volume;
    if (::fstat(fd_.get(), &status) != 0 || ::fstatvfs(fd_.get(), &volume) != 0)
      fail_errno("stat", path_, errno);
    const std::uint64_t held = static_cast<std::uint64_t>(status.st_blocks) * 512;
    const std::uint64_t free = std::uint64_t{volume.f_bavail} * volume.f_frsize;
    if (size_bytes > held && size_bytes - held > free)
      fail_errno("reserve room for", path_, ENOSPC);
  }

  std::shared_ptr<const PosixContext> context_;
  std::string path_;
  UniqueFd fd_;  // through the page cache
  bool direct_wanted_;
  std::once_flag direct_once_;
  UniqueFd direct_fd_;  // O_DIRECT, opened at the first aligned middle
  std::atomic<bool> direct_works_{false};
  std::atomic<bool> poisoned_{false};
};

}  // namespace

std::unique_ptr<WriteFile> open_posix_write_file(std::shared_ptr<const PosixContext> context,
                                                 const std::string& path, IoMode mode,
                                                 bool create_new) {
  const int flags =
      O_WRONLY | O_NOFOLLOW | O_CLOEXEC | (create_new ? O_CREAT | O_EXCL : O_NONBLOCK);
  Interruptions interruptions;
  UniqueFd fd;
  do {
    fd.reset(::open(path.c_str(), flags, 0666));
  } while (!fd && interruptions.retry());
  if (!fd && errno == ELOOP) fail_link(path);
  if (!fd) fail_errno(create_new ? "create" : "open", path, errno);
  struct stat status;
  if (::fstat(fd.get(), &status) != 0) fail_errno("stat", path, errno);
  if (!S_ISREG(status.st_mode)) fail_not_regular(path);
  return std::make_unique<PosixWriteFile>(std::move(context), path, std::move(fd), mode);
}

}  // namespace tessera::storage

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/syscall.h>
#include <tessera/base/error.h>
#include <tessera/base/interrupted.h>
#include <tessera/storage/cache_probe.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <mutex>

#include "lib/storage/path_rules.h"
#include "lib/storage/posix/confined.h"
#include "lib/storage/posix/errno_error.h"
#include "lib/storage/read_rules.h"

namespace tessera::storage {

namespace {

// cachestat(2), which libraries of this age do not wrap: pages of a range by their state.
constexpr long kCachestat = 451;
struct CacheRange {
  std::uint64_t offset, length;
};
struct CacheStatus {
  std::uint64_t cached, dirty, in_writeback, evicted, recently_evicted;
};
const long kCachePageBytes = ::sysconf(_SC_PAGESIZE);

constexpr std::uint64_t kScatteredBytes = std::uint64_t{1} << 20;

bool is_aligned(std::uint64_t offset, MutableBytes out) {
  const auto address = reinterpret_cast<std::uintptr_t>(out.data());
  return (offset | out.size() | address) % kIoAlignment == 0;
}

// The size is the one seen at opening: a file that shrinks afterwards is reported, one that grows
// is read as it was.
class PosixReadFile final : public ReadFile, public CacheProbe {
 public:
  PosixReadFile(std::shared_ptr<const PosixContext> context,
                std::shared_ptr<const HeldDirectory> directory, std::string relative, UniqueFd fd,
                const struct stat& status, IoMode mode)
      : context_(std::move(context)),
        directory_(std::move(directory)),
        relative_(std::move(relative)),
        path_(join_path(directory_->path, relative_)),
        fd_(std::move(fd)),
        device_(status.st_dev),
        inode_(status.st_ino),
        size_bytes_(static_cast<std::uint64_t>(status.st_size)),
        mode_(mode),
        direct_wanted_(mode == IoMode::kDirect &&
                       context_->options().direct != DirectPolicy::kNever),
        cache_answers_(context_->options().direct == DirectPolicy::kAuto) {
    // Headers here and there: the pages around them, which the kernel would read ahead, are data
    // that is read directly if at all.
    if (mode == IoMode::kBuffered && size_bytes_ > kScatteredBytes)
      ::posix_fadvise(fd_.get(), 0, 0, POSIX_FADV_RANDOM);
  }

  std::uint64_t size_bytes() const override { return size_bytes_; }
  const std::string& path() const override { return path_; }

  void read_at(std::uint64_t offset, MutableBytes out) const override {
    const std::size_t wanted = readable_bytes(path_, size_bytes_, mode_, offset, out.size());
    std::size_t done = 0;
    if (direct_wanted_ && wanted > 0 && is_aligned(offset, out) && !lies_in_cache(offset, wanted))
      done = read_direct(offset, out, wanted);
    if (done < wanted) read_buffered(offset + done, out.subspan(done, wanted - done));
  }

  // What lies in the page cache, as after a save on this machine, is taken from there: the device
  // need not give it again. Asked, not tried: a read that must not wait still starts reading ahead.
  bool lies_in_cache(std::uint64_t offset, std::uint64_t length) const override {
    if (!cache_answers_.load(std::memory_order_relaxed)) return false;
    const CacheRange range{offset, length};
    CacheStatus status;
    if (::syscall(kCachestat, fd_.get(), &range, &status, 0) != 0) {
      cache_answers_.store(false, std::memory_order_relaxed);  // before Linux 6.5, or not ours
      return false;
    }
    const auto page = static_cast<std::uint64_t>(kCachePageBytes);
    return status.cached >= (offset + length + page - 1) / page - offset / page;
  }

 private:
  // Bytes read before the direct path gave up: at end of file, at a short read, or at a refusal.
  std::size_t read_direct(std::uint64_t offset, MutableBytes out, std::size_t wanted) const {
    std::call_once(direct_once_, [this] { open_direct(); });
    Interruptions interruptions;
    std::size_t done = 0;
    while (done < wanted && direct_works_.load(std::memory_order_relaxed)) {
      const std::size_t length = std::min(out.size() - done, context_->max_direct_bytes());
      const ssize_t got = transfer(offset + done, out.subspan(done, length));
      if (got > 0) {
        done += static_cast<std::size_t>(got);
        interruptions.clear();
        if (done % kIoAlignment != 0) break;
      } else if (got == 0) {
        break;
      } else if (errno == EINVAL) {
        context_->step_down(path_, EINVAL);
        direct_works_.store(false, std::memory_order_relaxed);
      } else if (!interruptions.retry()) {
        fail_errno("read", path_, errno);
      }
    }
    return done;
  }

  ssize_t transfer(std::uint64_t offset, MutableBytes out) const {
    if (context_->options().refuse_direct == DirectRefusal::kTransfer) {
      errno = EINVAL;
      return -1;
    }
    return ::pread(direct_fd_.get(), out.data(), out.size(), static_cast<off_t>(offset));
  }

  // The second descriptor must be the same file, whatever happened to the name meanwhile.
  void open_direct() const {
    OpenResult opened;
    opened.error = EINVAL;
    if (context_->options().refuse_direct != DirectRefusal::kOpen)
      opened = open_beneath(*context_, *directory_, relative_,
                            O_RDONLY | O_DIRECT | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
    struct stat status;
    if (opened.fd && ::fstat(opened.fd.get(), &status) == 0 && status.st_dev == device_ &&
        status.st_ino == inode_) {
      direct_fd_ = std::move(opened.fd);
      direct_works_.store(true, std::memory_order_relaxed);
    } else {
      context_->step_down(path_, opened.error != 0 ? opened.error : ESTALE);
    }
  }

  void read_buffered(std::uint64_t offset, MutableBytes out) const {
    Interruptions interruptions;
    std::size_t done = 0;
    while (done < out.size()) {
      const std::size_t length =
          std::min(out.size() - done, context_->options().max_transfer_bytes);
      const ssize_t got =
          ::pread(fd_.get(), out.data() + done, length, static_cast<off_t>(offset + done));
      if (got > 0) {
        done += static_cast<std::size_t>(got);
        interruptions.clear();
      } else if (got == 0) {
        fail(Code::kCorrupt, fmt::format("{} shrank from {} to at most {} bytes while it was read",
                                         path_, size_bytes_, offset + done));
      } else if (!interruptions.retry()) {
        fail_errno("read", path_, errno);
      }
    }
  }

  std::shared_ptr<const PosixContext> context_;
  std::shared_ptr<const HeldDirectory> directory_;
  std::string relative_;
  std::string path_;
  UniqueFd fd_;  // through the page cache
  dev_t device_;
  ino_t inode_;
  std::uint64_t size_bytes_;
  IoMode mode_;
  bool direct_wanted_;
  mutable std::once_flag direct_once_;
  mutable UniqueFd direct_fd_;  // O_DIRECT, opened at the first aligned request
  mutable std::atomic<bool> direct_works_{false};
  mutable std::atomic<bool> cache_answers_;  // unless direct I/O was asked for
};

}  // namespace

std::unique_ptr<ReadFile> make_posix_read_file(std::shared_ptr<const PosixContext> context,
                                               std::shared_ptr<const HeldDirectory> directory,
                                               std::string relative, UniqueFd fd,
                                               const struct stat& status, IoMode mode) {
  return std::make_unique<PosixReadFile>(std::move(context), std::move(directory),
                                         std::move(relative), std::move(fd), status, mode);
}

}  // namespace tessera::storage

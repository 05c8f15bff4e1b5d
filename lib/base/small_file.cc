#include <fcntl.h>
#include <tessera/base/interrupted.h>
#include <tessera/base/small_file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace tessera {
namespace {

constexpr std::size_t kFirstBlockBytes = 4096;  // files of /proc and /sys are shorter
constexpr std::size_t kMostBlockBytes = std::size_t{1} << 20;

struct Opened {
  explicit Opened(const std::string& path) {
    Interruptions interruptions;
    do {
      fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    } while (fd < 0 && interruptions.retry());
  }
  ~Opened() {
    if (fd >= 0) ::close(fd);
  }
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;
  int fd;
};

}  // namespace

int read_small_file(const std::string& path, std::size_t most_bytes, std::string& text) {
  const Opened opened(path);
  if (opened.fd < 0) return errno;
  Interruptions interruptions;
  std::size_t total = 0;
  for (std::size_t block = kFirstBlockBytes;; block = std::min(block * 2, kMostBlockBytes)) {
    const std::size_t at = text.size();
    text.resize(at + block);
    const ssize_t got = ::read(opened.fd, text.data() + at, block);
    const int error = got < 0 ? errno : 0;
    text.resize(at + static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    if (got == 0) return 0;
    if (got > 0) {
      interruptions.clear();
      total += static_cast<std::size_t>(got);
      if (total > most_bytes) return EFBIG;
    } else {
      errno = error;
      if (!interruptions.retry()) return error;
    }
  }
}

}  // namespace tessera

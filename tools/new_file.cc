#include "tools/new_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/interrupted.h>
#include <tessera/base/progress.h>
#include <tessera/base/text.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <string_view>

#include "lib/storage/posix/errno_error.h"
#include "tools/signals.h"

namespace tessera::tools {
namespace {

/// A file under construction, removed again unless keep() was called.
class NewFile {
 public:
  NewFile(std::string path, const char* flag) : path_(std::move(path)) {
    Interruptions interruptions;
    do fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    while (fd_ < 0 && interruptions.retry());
    if (fd_ < 0 && errno == EEXIST)
      fail(Code::kAlreadyExists, fmt::format("{} exists", printable(path_)),
           fmt::format("choose another name for {}, or remove it", flag));
    if (fd_ < 0) storage::fail_errno("write", path_, errno);
  }
  ~NewFile() {
    if (fd_ >= 0) ::close(fd_);
    if (!kept_) ::unlink(path_.c_str());
  }
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  void write(std::string_view bytes) {
    Interruptions interruptions;
    while (!bytes.empty()) {
      const ssize_t n = ::write(fd_, bytes.data(), bytes.size());
      if (n < 0 && interruptions.retry()) continue;
      if (n < 0) storage::fail_errno("write", path_, errno);
      bytes.remove_prefix(static_cast<std::size_t>(n));
      interruptions.clear();
    }
  }

  /// Closes it, and gives it its name if that is another one.
  void keep(const std::string& name) {
    const int fd = fd_;
    fd_ = -1;
    if (::close(fd) != 0) storage::fail_errno("write", path_, errno);
    if (name != path_ && std::rename(path_.c_str(), name.c_str()) != 0)
      storage::fail_errno("write", name, errno);
    kept_ = true;
  }

 private:
  std::string path_;
  int fd_ = -1;
  bool kept_ = false;
};

}  // namespace

void write_new_file(const std::string& path, const char* flag, bool replace, bool holds_signals,
                    const std::function<void(const Sink& sink)>& content) {
  static CancelToken finish_first;
  if (holds_signals) install_signal_handlers(&finish_first);
  constexpr std::size_t kPiece = std::size_t{64} << 10;
  std::string waiting;
  NewFile file(replace ? fmt::format("{}.tmp-{}", path, ::getpid()) : path, flag);
  content([&](std::string_view piece) {
    waiting += piece;
    if (waiting.size() < kPiece) return;
    file.write(waiting);
    waiting.clear();
  });
  file.write(waiting);
  file.keep(path);
}

}  // namespace tessera::tools

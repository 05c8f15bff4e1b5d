#pragma once
// Repeating a system call that a signal interrupted (EINTR), but not for ever: if every attempt is
// interrupted, the caller reports EINTR as its own error, with path and errno, instead of spinning
// silently.
//
//   Interruptions interruptions;
//   do fd = ::open(path, flags);
//   while (fd < 0 && interruptions.retry());
//   if (fd < 0) fail_errno("open", path, errno);
#include <cerrno>

namespace tessera {

/// Counts consecutive interrupted attempts. One object for one sequence of attempts, in one thread.
class Interruptions {
 public:
  /// Far more interruptions than signals cause in a working system; reached within milliseconds.
  static constexpr int kMost = 10'000;

  /// Right after a call failed: true when it may be repeated. errno stays as it is.
  bool retry() { return errno == EINTR && ++count_ < kMost; }
  /// The call succeeded: the next one starts counting again.
  void clear() { count_ = 0; }

 private:
  int count_ = 0;
};

}  // namespace tessera

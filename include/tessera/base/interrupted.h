#pragma once
// Repeating a system call that a signal interrupted (EINTR), but not for ever: where every attempt
// is interrupted, the caller's own error says so, with path and errno, instead of a program that
// spins without a word.
//
//   Interruptions interruptions;
//   do fd = ::open(path, flags);
//   while (fd < 0 && interruptions.retry());
//   if (fd < 0) fail_errno("open", path, errno);
#include <cerrno>

namespace tessera {

/// Attempts in a row that were interrupted. One object for one row of attempts, in one thread.
class Interruptions {
 public:
  /// Far above what signals do to a call that lives, and over in milliseconds.
  static constexpr int kMost = 10'000;

  /// Right after a call failed: true when it may be repeated. errno stays as it is.
  bool retry() { return errno == EINTR && ++count_ < kMost; }
  /// The call went through: the next one begins a row of its own.
  void clear() { count_ = 0; }

 private:
  int count_ = 0;
};

}  // namespace tessera

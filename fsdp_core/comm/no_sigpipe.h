#pragma once
// NoSigpipe: while it lives, writing to a connection whose peer has gone is an error in this thread
// and in the threads it starts, not a signal that ends the process. Gloo writes without
// MSG_NOSIGNAL; what a program does about SIGPIPE elsewhere stays its own.
#include <pthread.h>
#include <signal.h>

namespace tessera::fsdp {

class NoSigpipe {
 public:
  NoSigpipe() noexcept {
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~NoSigpipe() {
    // One that came meanwhile must not be delivered now.
    const timespec at_once{};
    if (!was_pending_) sigtimedwait(&pipe_, nullptr, &at_once);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NoSigpipe(const NoSigpipe&) = delete;
  NoSigpipe& operator=(const NoSigpipe&) = delete;

 private:
  sigset_t pipe_, before_;
  bool was_pending_;
};

}  // namespace tessera::fsdp

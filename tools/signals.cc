#include "tools/signals.h"

#include <unistd.h>

#include <atomic>
#include <csignal>

namespace tessera::tools {
namespace {

// A signal handler can reach nothing but globals; these two are written before it is installed and
// by it alone.
std::atomic<CancelToken*> g_token{nullptr};
std::atomic<int> g_signal{0};
static_assert(std::atomic<int>::is_always_lock_free &&
              std::atomic<CancelToken*>::is_always_lock_free);

extern "C" void on_signal(int signal) {
  CancelToken* token = g_token.load();
  if (!token || g_signal.exchange(signal) != 0) _exit(128 + signal);
  token->cancel();
}

}  // namespace

void install_signal_handlers(CancelToken* token) {
  g_token = token;
  struct sigaction action {};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  for (const int signal : {SIGINT, SIGTERM}) {
    struct sigaction before {};
    // A command started with the signal ignored (nohup, a shell's background job) keeps ignoring
    // it.
    if (sigaction(signal, nullptr, &before) == 0 && before.sa_handler == SIG_IGN) continue;
    sigaction(signal, &action, nullptr);
  }
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // the write says so (EFBIG), and the message how to go on
}

int caught_signal() { return g_signal.load(); }

}  // namespace tessera::tools

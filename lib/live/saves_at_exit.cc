#include "lib/live/saves_at_exit.h"

#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <vector>

namespace tessera {

namespace {

/// Longer, and somebody may wonder.
constexpr std::chrono::seconds kQuiet{1};

struct InFlight {
  std::weak_ptr<PendingSave::Work> work;
  std::string path;
};

struct AllInFlight {
  std::atomic<pid_t> process = 0;  // the last that saved
  std::mutex mutex;
  std::vector<InFlight> saves;
};

AllInFlight& all() {
  static auto* const made = new AllInFlight;  // never ended: exit() reads it
  return *made;
}

thread_local bool saves_here = false;

void wait_for(const InFlight& save) {
  const std::shared_ptr<PendingSave::Work> work = save.work.lock();
  if (!work || !work->is_of_this_process()) return;
  if (work->result.wait_for(kQuiet) != std::future_status::ready)
    std::fprintf(stderr, "tessera: exit() waits for the save to %s\n",
                 printable(save.path).c_str());
  work->result.wait();
  try {
    static_cast<void>(work->result.get());
  } catch (...) {
    if (!work->thrown.exchange(true)) print_unthrown(current_exception_status());
  }
}

void wait_for_all() {
  // (A child may have been forked while the mutex was held.)
  if (saves_here || all().process != ::getpid()) return;
  std::vector<InFlight> saves;
  {
    const std::lock_guard lock(all().mutex);
    saves = all().saves;
  }
  for (const InFlight& save : saves) wait_for(save);
}

}  // namespace

void wait_for_at_exit(const std::shared_ptr<PendingSave::Work>& work, const std::string& path) {
  const std::lock_guard lock(all().mutex);
  all().process = ::getpid();
  std::erase_if(all().saves, [](const InFlight& save) { return save.work.expired(); });
  all().saves.push_back({work, path});
  std::atexit(wait_for_all);  // each time: exit() ends what was made before this save after waiting
}

void saves_on_this_thread() { saves_here = true; }

}  // namespace tessera

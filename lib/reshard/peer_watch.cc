#include "lib/reshard/peer_watch.h"

#include <tessera/base/bytes.h>

#include <chrono>

namespace tessera {

namespace {

constexpr auto kBetweenBeats = std::chrono::milliseconds(100);

struct Beat {
  std::uint64_t state = 0;
  std::uint64_t done_bytes = 0;
};

}  // namespace

PeerWatch::PeerWatch(RankGroup& ranks, const Progress& own, Progress* merged,
                     const CancelToken* user)
    : ranks_(ranks.duplicate()), own_(own), merged_(merged), user_(user) {
  if (merged_ != nullptr) before_bytes_ = merged_->done_bytes;
  thread_ = std::thread([this] { run(); });
}

PeerWatch::~PeerWatch() {
  if (thread_.joinable()) finish(false);
}

bool PeerWatch::finish(bool succeeded) {
  {
    const std::lock_guard lock(mutex_);
    state_ = succeeded ? State::kEnded : State::kFailed;
  }
  wake_.notify_all();
  thread_.join();
  return peer_failed_;
}

void PeerWatch::run() {
  try {
    for (;;) {
      State mine;
      {
        std::unique_lock lock(mutex_);
        wake_.wait_for(lock, kBetweenBeats, [this] { return state_ != State::kWorking; });
        mine = state_;
      }
      if (user_ != nullptr && user_->cancelled()) stop_.cancel();
      if (beat(mine)) return;
    }
  } catch (...) {  // a peer is gone: the agreement that follows says so
    peer_failed_ = true;
    stop_.cancel();
  }
}

/// True when the watch is over.
bool PeerWatch::beat(State mine) {
  Bytes said(sizeof(Beat));
  store_le(said.data(), static_cast<std::uint64_t>(mine));
  store_le(said.data() + sizeof(std::uint64_t), own_.done_bytes.load());
  const auto all = ranks_->all_gather(said);
  bool ended = true, failed = false;
  std::uint64_t done = before_bytes_;
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (all[r].size() != sizeof(Beat))
      fail(Code::kInternal, "a message from another rank has another size");
    const auto state = static_cast<State>(load_le<std::uint64_t>(all[r].data()));
    done += load_le<std::uint64_t>(all[r].data() + sizeof(std::uint64_t));
    ended = ended && state == State::kEnded;
    const bool peer = static_cast<int>(r) != ranks_->rank();
    if (state == State::kFailed && peer) peer_failed_ = true;
    failed = failed || state == State::kFailed;
  }
  if (merged_ != nullptr) merged_->done_bytes = done;
  if (failed) stop_.cancel();
  return ended || failed;
}

}  // namespace tessera

#pragma once
// PeerWatch: while every process of a group does its own part, a thread on each sends the others
// its progress ten times a second, and whether it has failed:
//
//   working --finish(true)-->  ended    all ended: the watch is over everywhere
//           --finish(false)--> failed   the others stop at their next block; over everywhere
//
// So progress is everybody's on every process, and a failure on one process stops the rest within
// a moment instead of when they have copied for hours. Every process sees the same beats, so that
// all leave the watch at the same one.
#include <tessera/base/progress.h>
#include <tessera/base/rank_group.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

namespace tessera {

class PeerWatch {
 public:
  /// Collective. `own` counts this process' work; its sum over the group goes to `merged` (may be
  /// nullptr), on top of what that held. `user`: the token that the user's cancel sets, or nullptr.
  PeerWatch(RankGroup& ranks, const Progress& own, Progress* merged, const CancelToken* user);
  /// Without finish() before it, as after finish(false).
  ~PeerWatch();

  /// What this process' work has to obey: set by the user's cancel and by a peer's failure.
  const CancelToken& stop() const { return stop_; }
  bool cancelled_by_user() const { return user_ != nullptr && user_->cancelled(); }
  /// This process has ended its part. Returns when the watch is over; true where a peer's failure
  /// ended it.
  bool finish(bool succeeded);

 private:
  enum class State : std::uint8_t { kWorking, kEnded, kFailed };
  void run();
  bool beat(State mine);

  std::unique_ptr<RankGroup> ranks_;
  const Progress& own_;
  Progress* merged_;
  const CancelToken* user_;
  std::uint64_t before_bytes_ = 0;
  CancelToken stop_;
  std::mutex mutex_;
  std::condition_variable wake_;
  State state_ = State::kWorking;
  bool peer_failed_ = false;  // written by the thread, read after it was joined
  std::thread thread_;
};

}  // namespace tessera

#pragma once
// ThreadMeeting: where the threads of one process, one per rank, meet for a collective call.
//
//   arrive   everybody lays down a pointer
//   meet     all may read all pointers
//   depart   nobody reads any more
//
// Between its arrival and its departure a thread's payload stays valid, so that peers copy straight
// from its memory. A failure (a thread gone, a disagreement, a wait beyond the timeout, fail() from
// anywhere) ends every pending and later arrival with the same error; it never ends a departure,
// since peers may still be reading. Threads: one per rank; fail() and failure() from any thread.
#include <tessera/base/error.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

namespace tessera {

class ThreadMeeting {
 public:
  /// Judges one call from everybody's payload, in the last thread to arrive. Not ok: all fail with
  /// it.
  using Check = Status (*)(std::span<const void* const> payloads);

  /// `rank_names`: what messages call the members (their global ranks).
  ThreadMeeting(std::vector<int> rank_names, std::chrono::milliseconds timeout);

  int size() const { return static_cast<int>(names_.size()); }
  const std::vector<int>& rank_names() const { return names_; }

  /// Throws the failure. `member` is the index of this thread's rank.
  void arrive(int member, const void* payload, Check check = nullptr);
  const void* payload(int member) const { return payloads_[member]; }
  void depart();

  /// The first failure stays.
  void fail(Status status) noexcept;
  Status failure() const;

  /// One call: arrives, and departs when it goes out of scope.
  class Visit {
   public:
    Visit(ThreadMeeting& meeting, int member, const void* payload, Check check = nullptr)
        : meeting_(meeting) {
      meeting_.arrive(member, payload, check);
    }
    ~Visit() { meeting_.depart(); }
    Visit(const Visit&) = delete;
    Visit& operator=(const Visit&) = delete;

   private:
    ThreadMeeting& meeting_;
  };

 private:
  Status missing_locked() const;

  const std::vector<int> names_;
  const std::chrono::milliseconds timeout_;
  mutable std::mutex mutex_;
  std::condition_variable all_arrived_;
  std::condition_variable all_departed_;
  std::vector<const void*> payloads_;
  std::vector<bool> here_;
  int arrived_ = 0;
  int departed_ = 0;
  std::uint64_t round_ = 0;   // rounds whose arrivals are complete
  std::uint64_t closed_ = 0;  // rounds whose departures are complete
  Status failure_;
};

}  // namespace tessera

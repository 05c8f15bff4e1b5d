#include <fmt/format.h>
#include <fmt/ranges.h>
#include <tessera/base/thread_meeting.h>

#include <thread>

namespace tessera {

namespace {

/// Waits a while awake: putting a thread to sleep and waking it takes longer than most waits of
/// calls that tell a few bytes. Whoever has a processor's work to do gets the processor.
template <class Done>
void wait_awake(std::unique_lock<std::mutex>& lock, const Done& done) {
  constexpr int kTurns = 200;  // some 100 microseconds where nobody else wants the processor
  for (int turn = 0; turn < kTurns && !done(); ++turn) {
    lock.unlock();
    std::this_thread::yield();
    lock.lock();
  }
}

}  // namespace

ThreadMeeting::ThreadMeeting(std::vector<int> rank_names, std::chrono::milliseconds timeout)
    : names_(std::move(rank_names)),
      timeout_(timeout),
      payloads_(names_.size(), nullptr),
      here_(names_.size(), false) {}

void ThreadMeeting::arrive(int member, const void* payload, Check check) {
  std::unique_lock lock(mutex_);
  if (!failure_.ok()) throw Error(failure_);
  TESSERA_CHECK(!here_[member]);  // else two threads call as one rank
  here_[member] = true;
  payloads_[member] = payload;
  if (++arrived_ == size()) {
    if (check) failure_ = check(payloads_);
    if (failure_.ok()) {
      arrived_ = 0;
      std::fill(here_.begin(), here_.end(), false);
      ++round_;
    }
    all_arrived_.notify_all();
    if (!failure_.ok()) throw Error(failure_);
    return;
  }
  const std::uint64_t mine = round_;
  const auto is_decided = [&] { return round_ != mine || !failure_.ok(); };
  wait_awake(lock, is_decided);
  const bool in_time = all_arrived_.wait_for(lock, timeout_, is_decided);
  if (round_ != mine) return;
  if (!in_time) {
    failure_ = missing_locked();
    all_arrived_.notify_all();
  }
  throw Error(failure_);
}

void ThreadMeeting::depart() {
  std::unique_lock lock(mutex_);
  if (++departed_ == size()) {
    departed_ = 0;
    ++closed_;
    all_departed_.notify_all();
    return;
  }
  const std::uint64_t mine = closed_;
  const auto is_closed = [&] { return closed_ != mine; };
  wait_awake(lock, is_closed);
  all_departed_.wait(lock, is_closed);
}

void ThreadMeeting::fail(Status status) noexcept {
  std::lock_guard lock(mutex_);
  if (!failure_.ok()) return;
  failure_ = std::move(status);
  all_arrived_.notify_all();
}

Status ThreadMeeting::failure() const {
  std::lock_guard lock(mutex_);
  return failure_;
}

Status ThreadMeeting::missing_locked() const {
  std::vector<int> missing;
  for (std::size_t member = 0; member < names_.size(); ++member)
    if (!here_[member]) missing.push_back(names_[member]);
  return Status{
      Code::kTimeout,
      fmt::format("{} {} did not come within {} ms", missing.size() == 1 ? "rank" : "ranks",
                  fmt::join(missing, ", "), timeout_.count()),
      {},
      {}};
}

}  // namespace tessera

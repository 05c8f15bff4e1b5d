#include <fmt/format.h>
#include <fmt/ranges.h>
#include <tessera/base/thread_meeting.h>

namespace tessera {

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
  const bool in_time =
      all_arrived_.wait_for(lock, timeout_, [&] { return round_ != mine || !failure_.ok(); });
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
  all_departed_.wait(lock, [&] { return closed_ != mine; });
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

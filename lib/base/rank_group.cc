#include <fmt/format.h>
#include <tessera/base/rank_group.h>
#include <tessera/base/thread_meeting.h>

#include <numeric>

#include "lib/base/status_bytes.h"

namespace tessera {

namespace {

class SingleRank final : public RankGroup {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::vector<std::vector<std::byte>> all_gather(std::span<const std::byte> bytes) override {
    return {{bytes.begin(), bytes.end()}};
  }
  std::unique_ptr<RankGroup> duplicate() override { return single_rank(); }
};

/// A save may keep one rank busy for long before the next call; a thread that is gone is noticed at
/// once.
constexpr std::chrono::minutes kThreadTimeout{30};

class ThreadRank final : public RankGroup {
 public:
  ThreadRank(std::shared_ptr<ThreadMeeting> meeting, int rank)
      : meeting_(std::move(meeting)), rank_(rank) {}

  ~ThreadRank() override {
    meeting_->fail(Status{
        Code::kIo, fmt::format("rank {} has left the group", rank_), {"", "", "", rank_}, {}});
  }

  int rank() const override { return rank_; }
  int size() const override { return meeting_->size(); }

  std::vector<std::vector<std::byte>> all_gather(std::span<const std::byte> bytes) override {
    std::vector<std::vector<std::byte>> all(size());
    const ThreadMeeting::Visit visit(*meeting_, rank_, &bytes);
    for (int peer = 0; peer < size(); ++peer) {
      const auto& theirs = *static_cast<const std::span<const std::byte>*>(meeting_->payload(peer));
      all[peer].assign(theirs.begin(), theirs.end());
    }
    return all;
  }

  std::unique_ptr<RankGroup> duplicate() override {
    std::shared_ptr<ThreadMeeting> made;
    if (rank_ == 0) made = std::make_shared<ThreadMeeting>(meeting_->rank_names(), kThreadTimeout);
    const ThreadMeeting::Visit visit(*meeting_, rank_, &made);
    const auto& shared = *static_cast<const std::shared_ptr<ThreadMeeting>*>(meeting_->payload(0));
    return std::make_unique<ThreadRank>(shared, rank_);
  }

 private:
  std::shared_ptr<ThreadMeeting> meeting_;
  int rank_;
};

}  // namespace

std::vector<std::vector<std::byte>> RankGroup::gather(std::span<const std::byte> bytes) {
  auto all = all_gather(bytes);
  if (rank() != 0) all.clear();
  return all;
}

void RankGroup::barrier() { all_gather({}); }

std::unique_ptr<RankGroup> RankGroup::duplicate() {
  fail(Code::kUnsupported, "this group of ranks cannot work in the background");
}

void RankGroup::agree(const Status& mine) {
  const auto all = all_gather(mine.ok() ? std::vector<std::byte>{} : status_to_bytes(mine));
  for (std::size_t peer = 0; peer < all.size(); ++peer) {
    if (all[peer].empty()) continue;
    Status first = status_from_bytes(all[peer]);
    if (first.context.rank < 0) first.context.rank = static_cast<int>(peer);
    failed_together_ = true;
    throw Error(std::move(first));
  }
}

void RankGroup::together(const std::function<void()>& f) {
  Status mine;
  try {
    f();
  } catch (...) {
    mine = current_exception_status();
  }
  agree(mine);
}

std::unique_ptr<RankGroup> single_rank() { return std::make_unique<SingleRank>(); }

std::vector<std::unique_ptr<RankGroup>> thread_ranks(int size) {
  if (size < 1) fail(Code::kInvalidArgument, fmt::format("a group of {} ranks", size));
  std::vector<int> names(size);
  std::iota(names.begin(), names.end(), 0);
  const auto meeting = std::make_shared<ThreadMeeting>(std::move(names), kThreadTimeout);
  std::vector<std::unique_ptr<RankGroup>> ranks;
  for (int rank = 0; rank < size; ++rank)
    ranks.push_back(std::make_unique<ThreadRank>(meeting, rank));
  return ranks;
}

}  // namespace tessera

#include "fsdp_core/simulate/timeline.h"

#include <tessera/base/error.h>

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <queue>
#include <utility>

namespace tessera::fsdp {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

/// Plays operations from one event to the next: an end of a fixed time, or of work on a link.
class Player {
 public:
  Player(std::vector<TimedOperation>& operations, double inter_rate_beside_intra)
      : operations_(operations),
        beside_(inter_rate_beside_intra),
        waits_for_(operations.size()),
        followers_(operations.size()) {
    for (std::size_t i = 0; i < operations.size(); ++i) {
      waits_for_[i] = operations[i].after.size();
      for (const int before : operations[i].after)
        followers_[static_cast<std::size_t>(before)].push_back(i);
    }
  }

  void play() {
    for (std::size_t i = 0; i < operations_.size(); ++i)
      if (waits_for_[i] == 0) begin(i);
    for (double next = next_event(); next < kNever; next = next_event()) {
      advance_to(next);
      end_what_is_due();
    }
    TESSERA_CHECK(ended_ == operations_.size());
  }

 private:
  using OnLink = std::pair<std::size_t, double>;  // an operation, and seconds of work left
  using Due = std::pair<double, std::size_t>;

  void begin(std::size_t i) {
    operations_[i].begin = now_;
    due_.emplace(now_ + operations_[i].fixed, i);
  }

  double rate(int link) const {
    const auto users = static_cast<double>(links_[static_cast<std::size_t>(link)].size());
    const bool slowed = link == Timeline::kInter && !links_[Timeline::kIntra].empty();
    return (slowed ? beside_ : 1) / users;
  }

  double next_event() const {
    double next = due_.empty() ? kNever : due_.top().first;
    for (const int link : {Timeline::kIntra, Timeline::kInter})
      for (const auto& [i, left] : links_[static_cast<std::size_t>(link)])
        next = std::min(next, now_ + left / rate(link));
    return next;
  }

  void advance_to(double next) {
    // Rates before either list changes.
    std::array<double, 2> done{};
    for (const int link : {Timeline::kIntra, Timeline::kInter})
      if (!links_[static_cast<std::size_t>(link)].empty())
        done[static_cast<std::size_t>(link)] = (next - now_) * rate(link);
    for (std::size_t link = 0; link < links_.size(); ++link)
      for (OnLink& each : links_[link]) each.second -= done[link];
    now_ = next;
  }

  void end_what_is_due() {
    // What sums of floats leave, below which time would not go on.
    const double nothing = 1e-13 * (1 + now_);
    std::vector<std::size_t> ended;
    for (std::vector<OnLink>& link : links_) {
      for (const auto& [i, left] : link)
        if (left <= nothing) ended.push_back(i);
      std::erase_if(link, [&](const OnLink& each) { return each.second <= nothing; });
    }
    while (!due_.empty() && due_.top().first <= now_) {
      const std::size_t i = due_.top().second;
      due_.pop();
      if (operations_[i].work > 0)
        links_[static_cast<std::size_t>(operations_[i].link)].emplace_back(i, operations_[i].work);
      else
        ended.push_back(i);
    }
    std::sort(ended.begin(), ended.end());
    for (const std::size_t i : ended) end(i);
  }

  void end(std::size_t i) {
    operations_[i].end = now_;
    ++ended_;
    for (const std::size_t next : followers_[i])
      if (--waits_for_[next] == 0) begin(next);
  }

  std::vector<TimedOperation>& operations_;
  const double beside_;
  double now_ = 0;
  std::size_t ended_ = 0;
  std::vector<std::size_t> waits_for_;
  std::vector<std::vector<std::size_t>> followers_;
  std::priority_queue<Due, std::vector<Due>, std::greater<>> due_;
  std::array<std::vector<OnLink>, 2> links_;
};

}  // namespace

int Timeline::add(TimedOperation operation) {
  std::sort(operation.after.begin(), operation.after.end());
  operation.after.erase(std::unique(operation.after.begin(), operation.after.end()),
                        operation.after.end());
  TESSERA_CHECK(operation.after.empty() ||
                operation.after.back() < static_cast<int>(operations_.size()));
  operations_.push_back(std::move(operation));
  return static_cast<int>(operations_.size()) - 1;
}

void Timeline::play(double inter_rate_beside_intra) {
  Player(operations_, inter_rate_beside_intra).play();
}

}  // namespace tessera::fsdp

#include "fsdp_core/runtime/forward_order.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "fsdp_core/runtime/unit.h"

namespace tessera::fsdp::detail {

void ForwardOrder::begin(bool whole, bool training, bool warns) {
  trains_ = training;
  records_ = whole && (known_ == Known::kNot || (training && known_ == Known::kEvaluation));
  follows_ = whole && training && warns && !warned_ && known_ == Known::kTraining;
  recording_.clear();
  at_ = 0;
}

void ForwardOrder::entered(Unit& unit) {
  if (records_) recording_.push_back({&unit, unit.weak_from_this()});
  if (at_ < order_.size() && order_[at_].unit == &unit) {
    ++at_;
    return;
  }
  if (std::exchange(follows_, false)) {
    warned_ = true;
    TORCH_WARN(
        fmt::format("{} runs as number {} of its forward; in the first forward another unit did. "
                    "Prefetching follows the first order. (This is said once.)",
                    unit.label(), at_ + 1));
  }
  const auto found = std::ranges::find(order_, &unit, &Entry::unit);
  if (found != order_.end()) at_ = static_cast<std::size_t>(found - order_.begin()) + 1;
}

void ForwardOrder::end() {
  if (!std::exchange(records_, false) || recording_.empty()) return;
  order_ = std::move(recording_);
  recording_.clear();
  known_ = trains_ ? Known::kTraining : Known::kEvaluation;
}

c10::SmallVector<std::shared_ptr<Unit>, 4> ForwardOrder::next(const Unit& unit, int count) const {
  c10::SmallVector<std::shared_ptr<Unit>, 4> out;
  if (at_ == 0 || order_[at_ - 1].unit != &unit) return out;
  for (std::size_t i = at_; i < order_.size() && static_cast<int>(out.size()) < count; ++i)
    if (auto following = order_[i].reference.lock();
        following && (following.get() != &unit || unit.modules().size() == 1))
      out.push_back(std::move(following));
  return out;
}

}  // namespace tessera::fsdp::detail

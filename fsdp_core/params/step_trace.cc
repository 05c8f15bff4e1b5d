#include "fsdp_core/params/step_trace.h"

#include <algorithm>

namespace tessera::fsdp {

std::size_t StepTrace::allocated(std::size_t bytes) {
  std::vector<Lifetime>& step = current();
  if (step.size() == kMostLifetimes) return kMostLifetimes;
  step.push_back({bytes, now_++});
  ++open_;
  return step.size() - 1;
}

void StepTrace::freed(std::uint64_t step, std::size_t index) {
  if (step != number_ || index >= current().size()) return;
  current()[index].end = now_++;
  --open_;
}

bool StepTrace::ends() {
  if (open_ == 0) {
    backwards_ = 0;
    return true;
  }
  // Not counted down before there is a quiet moment: until then every backward is a step.
  return ++backwards_ >= kMostBackwards || current().size() == kMostLifetimes;
}

void StepTrace::close(std::size_t most) {
  Step& step = steps_[number_ % kPlaces];
  if (step.lifetimes.size() == kMostLifetimes) step.lifetimes.clear();
  step.most = most;
  // All places at once: each would ask for memory when its turn comes first.
  for (Step& place : steps_) place.lifetimes.reserve(step.lifetimes.size());
  ++number_;
  current().clear();
  now_ = 0;
  open_ = 0;
}

std::size_t StepTrace::period() const {
  for (std::size_t kinds = 1; kinds <= kMostKinds; ++kinds) {
    bool twice = number_ >= 2 * kinds;
    for (std::size_t ago = 0; twice && ago < kinds; ++ago)
      twice = !lifetimes(ago).empty() && lifetimes(ago) == lifetimes(ago + kinds);
    if (twice) return kinds;
  }
  return 0;
}

std::size_t StepTrace::most(std::size_t steps) const {
  std::size_t most = 0;
  for (std::size_t ago = 0; ago < std::min<std::size_t>(steps, kKept); ++ago)
    most = std::max(most, closed(ago).most);
  return most;
}

}  // namespace tessera::fsdp

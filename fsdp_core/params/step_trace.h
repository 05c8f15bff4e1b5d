#pragma once
// Step trace: which allocations a step makes and when, from one quiet moment to the next, and
// whether steps repeat.
//
//   step     from the end of a backward to the end of the next one at which nothing is held that
//            was allocated since: backwards that add up without synchronisation and the one that
//            reduces are one step
//   period   kinds of steps that come in turn: 1 where each is like the one before, 2 for two
//            models trained in turn, 4 where every fourth evaluates too
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "fsdp_core/params/arena_plan.h"

namespace tessera::fsdp {

class StepTrace {
 public:
  static constexpr std::size_t kMostKinds = 4;
  /// The most backwards of one step: a program that keeps an allocation for ever has no quiet
  /// moment.
  static constexpr std::size_t kMostBackwards = 64;

  /// Returns its index in the step. Only so many are kept, as a program that only evaluates never
  /// ends a step.
  std::size_t allocated(std::size_t bytes);
  void freed(std::uint64_t step, std::size_t index);
  /// The number of the step in progress.
  std::uint64_t number() const { return number_; }

  /// To be called after a backward; returns whether the step ended with it.
  bool ends();
  /// Ends the step, in which at most `most` bytes were in use together.
  void close(std::size_t most);

  /// The smallest number of kinds that the last steps came in, twice over; 0: none found.
  std::size_t period() const;
  /// 0: the last step that was closed. Empty where there was none, or one that was too long.
  const std::vector<Lifetime>& lifetimes(std::size_t ago) const { return closed(ago).lifetimes; }
  /// The most bytes in use together in any of the last `steps`.
  std::size_t most(std::size_t steps) const;

 private:
  static constexpr std::size_t kKept = 2 * kMostKinds, kPlaces = kKept + 1;
  struct Step {
    std::vector<Lifetime> lifetimes;
    std::size_t most = 0;
  };
  const Step& closed(std::size_t ago) const {
    return steps_[(number_ + kPlaces - 1 - ago) % kPlaces];
  }
  std::vector<Lifetime>& current() { return steps_[number_ % kPlaces].lifetimes; }

  // In turn: the step that goes on takes the oldest one's place, and its memory.
  std::array<Step, kPlaces> steps_;
  std::uint64_t number_ = 0;
  std::uint32_t now_ = 0;
  std::size_t open_ = 0, backwards_ = 0;
};

}  // namespace tessera::fsdp

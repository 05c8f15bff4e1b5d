#pragma once
// Arena plan: where in one piece of memory each allocation of a step lies, found from the lifetimes
// of the allocations of an equal step before it. With it a step asks the system for nothing,
// whatever the
// sizes of its units, and holds no more than was alive together at its worst moment. Pure.
//
//   time ->      |--p1--|     |------p1------|
//   offset          |--p2--||---p2---|--g1--|      nothing lies above what lives at the same time
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace tessera::fsdp {

struct Lifetime {
  static constexpr std::uint32_t kOpen = UINT32_MAX;
  std::size_t bytes = 0;
  std::uint32_t begin = 0;    // moments: counts of allocations and frees since the step began
  std::uint32_t end = kOpen;  // kOpen: still alive when the step ended
  bool operator==(const Lifetime&) const = default;
};

struct ArenaPlan {
  static constexpr std::size_t kNowhere = SIZE_MAX;
  std::size_t bytes = 0;             // of the arena
  std::vector<std::size_t> offsets;  // kNowhere: open, or empty
};

constexpr std::size_t kMostLifetimes = 4096;

/// Nothing where no placement is found that needs no more than the most bytes alive together, each
/// rounded up to 64, or where `step` has more than kMostLifetimes. The same for the same step.
std::optional<ArenaPlan> plan_arena(const std::vector<Lifetime>& step);

}  // namespace tessera::fsdp

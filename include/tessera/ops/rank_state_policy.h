#pragma once
// What becomes of state that belongs to one rank when the world size changes (--rank-state).
#include <cstdint>

namespace tessera {

/// kDefault keeps it where the world size stays, and refuses where it changes; Megatron's objects
/// of ranks, which name their place in the mesh, are kept then too.
enum class RankStatePolicy : std::uint8_t { kDefault, kKeep, kDrop, kRank0, kError };

}  // namespace tessera

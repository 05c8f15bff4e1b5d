#pragma once
// What becomes of state that belongs to one rank when the world size changes (--rank-state).
#include <cstdint>

namespace tessera {

/// kDefault keeps it if the world size stays the same, and refuses if it changes; Megatron's rank
/// objects, whose names hold their place in the mesh, are kept in both cases.
enum class RankStatePolicy : std::uint8_t { kDefault, kKeep, kDrop, kRank0, kError };

}  // namespace tessera

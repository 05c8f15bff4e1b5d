#pragma once
// What the values of a checkpoint may expand to where they are printed, hashed or compared: shared
// nodes are written once for each place they stand in, so that a few kilobytes can ask for 2^60 of
// them. The bound grows with what is really there: honest state of any size fits. Pure.
#include <tessera/state/manifest.h>
#include <tessera/state/value.h>

#include <cstdint>

namespace tessera {

/// Nodes that values of any checkpoint may expand to, however few they hold.
inline constexpr std::uint64_t kValueNodes = std::uint64_t{1} << 19;

/// 2^20 nodes, and twice what the values hold with each shared node counted once; 16 bytes of text
/// count as one node. Throws kCorrupt where they are sure to expand past that.
ValueBudget printing_budget(const StateDict& state);

/// Throws kCorrupt where values expand past their budget: a result that holds them could be
/// written, and no command could print, hash or compare it.
void require_printable(const StateDict& state);

}  // namespace tessera

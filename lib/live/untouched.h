#pragma once
// Canaries in memory that is about to be filled, and looking for them afterwards.
#include <tessera/reshard/fill.h>
#include <tessera/state/manifest.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tessera {

inline constexpr std::byte kFirstCanary{0xC9};
inline constexpr std::byte kSecondCanary{0x36};

/// Sets every byte of every element of the targets.
void fill_canary(const Manifest& manifest, std::span<const MemoryTarget> targets, std::byte canary);
/// Elements all of whose bytes are the canary, ascending, by their place in the target's ravel: not
/// written, or by chance.
std::vector<std::int64_t> canaries(const Manifest& manifest, const MemoryTarget& target,
                                   std::byte canary);
/// Whether the target's elements are these dense ones, bit by bit.
bool holds(const Manifest& manifest, const MemoryTarget& target, const std::byte* dense);
/// Copies the dense elements of the target's chunk to their places.
void copy_to_target(const Manifest& manifest, const std::byte* dense, const MemoryTarget& target);

}  // namespace tessera

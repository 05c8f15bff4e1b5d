#pragma once
#include <tessera/state/value.h>

#include <cstdint>

namespace tessera {

/// Whether the entries that flatten() makes of `root`, and what verbs make of these, take no more
/// than `most_bytes`. Ends as soon as they do; makes none.
bool flattens_within(const Value& root, std::uint64_t most_bytes);

}  // namespace tessera

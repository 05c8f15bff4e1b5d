#pragma once
#include <cstddef>
#include <cstdint>

#include "lib/base/cpu.h"

namespace tessera {

/// memcpy past the caches: a snapshot is far larger than they are, and nobody reads it soon.
/// `wide_vectors`: false on processors that lack them.
void stream_copy(std::byte* to, const std::byte* from, std::uint64_t bytes,
                 bool wide_vectors = has_wide_vectors());

}  // namespace tessera

#pragma once
// What --quantize makes of plain weights (lib/state/block_quantizer.h has the numbers).
#include <cstdint>

namespace tessera {

enum class BlockScheme : std::uint8_t { kFp8, kMxfp4, kNvfp4 };

}  // namespace tessera

#pragma once
// Deflated bytes, up to a bound: what is behind it stays packed.
#include <tessera/base/bytes.h>
#include <tessera/encoding/byte_window.h>

#include <cstdint>

namespace tessera {

enum class DeflateForm : std::uint8_t { kRaw, kZlibOrGzip };

struct Inflated {
  Bytes bytes;
  bool whole = false;  // the stream ended; false: more than the bound, or damaged
};

Inflated inflate_bounded(const ByteWindow& in, DeflateForm form, std::uint64_t most_bytes);

}  // namespace tessera

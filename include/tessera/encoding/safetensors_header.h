#pragma once
// The header of a safetensors file (or of a blob inside another file).
//
//   | u64 n, little-endian | n bytes of JSON | tensor bytes |
//
// The tensors' bytes lie without gap or overlap, to the last byte of the file.
//
// Reading is stricter than the reference reader: duplicate names, NUL in names and leading spaces
// are refused, too. Order of the guards: 8 bytes are there; n <= 100,000,000; 8 + n fits in the
// file; JSON; each tensor; ranges tile the data exactly. Memory is bounded by the header's bytes.
// Pure but for ByteWindow reads; thread-safe. Errors: kCorrupt, but an unknown dtype name is
// kUnsupported.
#include <tessera/base/shared_text.h>
#include <tessera/encoding/byte_window.h>
#include <tessera/tensor/shape.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

inline constexpr std::uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;

struct SafetensorsTensor {
  SharedText name;
  TensorSpec spec;
  std::uint64_t begin = 0;  // bytes, relative to the data
  std::uint64_t end = 0;
};

struct SafetensorsHeader {
  std::uint64_t data_offset = 0;                // 8 + n: where the tensor bytes start
  std::vector<SafetensorsTensor> tensors;       // in the order of the JSON
  std::map<std::string, std::string> metadata;  // __metadata__
  std::uint64_t missing_bytes = 0;              // what a short file lacks (tolerate only)
  std::uint64_t trailing_bytes = 0;             // what follows the last tensor (tolerate only)
};

/// Could this be a safetensors file? Reads at most 64 bytes; a damaged file may answer no.
bool looks_like_safetensors(const ByteWindow& window);

SafetensorsHeader read_safetensors_header(const ByteWindow& window, bool tolerate = false);

/// The JSON alone; `data_bytes` is what follows it. `tolerate`: data that ends early, or bytes
/// after the last tensor, are reported, not refused.
SafetensorsHeader parse_safetensors_header(ByteView json, std::uint64_t data_bytes,
                                           bool tolerate = false);

/// Lays tensors out as the safetensors library does: wide dtypes first (its own fixed order), then
/// by name. Sets begin and end, and reorders. Throws kUnsupported for a dtype that safetensors
/// cannot name or a name it cannot hold.
void layout_safetensors(std::vector<SafetensorsTensor>& tensors);

/// Bytes up to the first tensor byte: length, JSON, spaces. The data starts at a multiple of
/// `alignment` (a power of two >= 8). Throws kUnsupported past kMaxSafetensorsHeaderBytes.
Bytes render_safetensors_header(const std::vector<SafetensorsTensor>& tensors,
                                const std::vector<std::pair<std::string, std::string>>& metadata,
                                std::uint64_t alignment);

}  // namespace tessera

#pragma once
// One `.zarray`: what a zarr v2 array of Megatron-core says about itself, and the names of its
// chunk files. Pure.
#include <tessera/base/bytes.h>
#include <tessera/tensor/box.h>

#include <optional>
#include <string_view>
#include <vector>

namespace tessera::megatron_dist {

struct ZarrArray {
  TensorSpec spec;
  Shape chunk;             // of every chunk file, edges included
  bool byte_swap = false;  // ">f4"
  bool raw_dtype = false;  // "V2": two bytes of no stated type, which only bfloat16 becomes here
  std::int64_t chunk_count() const;
  std::uint64_t chunk_bytes() const;
};

/// Throws kCorrupt (malformed) and kUnsupported (compressor, filters, order F, zarr 3, dtype).
ZarrArray parse_zarray(ByteView json);

/// The part of the tensor that chunk file `name` ("1.0.2"; "0" for a scalar) holds; nullopt when
/// the name is none of a chunk. Throws kCorrupt for a chunk outside of the array.
std::optional<Box> zarr_chunk_box(const ZarrArray& array, std::string_view name);

/// The first chunk name of the grid that `names` (sorted bytewise) lacks; "" = none.
std::string first_missing_chunk(const ZarrArray& array, const std::vector<std::string>& names);

}  // namespace tessera::megatron_dist

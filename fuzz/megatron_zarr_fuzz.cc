// Any bytes as a .zarray and, after a NUL, the name of a chunk file: refused, or a box inside of
// the array.
#include <algorithm>

#include "fuzz/fuzz_support.h"
#include "fuzz/mutators.h"
#include "lib/format/megatron_dist/zarr_array.h"

using namespace tessera;

TESSERA_MUTATOR(mutate_zarr)

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const ByteView text{reinterpret_cast<const std::byte*>(data), size};
  const auto nul = std::find(text.begin(), text.end(), std::byte{0});
  const auto length = static_cast<std::size_t>(nul - text.begin());
  const std::string name(as_text(text.subspan(std::min(length + 1, size))));
  fuzz::refuse_cleanly([&] {
    const megatron_dist::ZarrArray array = megatron_dist::parse_zarray(text.first(length));
    const auto box = megatron_dist::zarr_chunk_box(array, name);
    if (box && !Box::whole(array.spec.shape).contains(*box)) std::abort();
    const std::string missing = megatron_dist::first_missing_chunk(array, {name});
    if (!missing.empty() && !megatron_dist::zarr_chunk_box(array, missing)) std::abort();
  });
  return 0;
}

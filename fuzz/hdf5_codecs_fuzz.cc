// Any bytes through HDF5's filters, the first byte choosing which: decoded within the limit, or
// refused.
#include <tessera/encoding/codec.h>

#include "fuzz/fuzz_support.h"
#include "fuzz/mutators.h"

using namespace tessera;

TESSERA_MUTATOR(mutate_words)

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  constexpr std::uint64_t kLimit = 1 << 20;
  constexpr const char* kCodecs[] = {"hdf5.deflate:65536", "hdf5.lzf:65536", "hdf5.shuffle:4",
                                     "hdf5.shuffle:7", "hdf5.fletcher32"};
  const std::string codec = kCodecs[data[0] % 5];
  const ByteView in(reinterpret_cast<const std::byte*>(data + 1), size - 1);
  fuzz::refuse_cleanly([&] {
    if (decode(codec, in, kLimit).size() > std::max<std::uint64_t>(65536, in.size())) std::abort();
  });
  return 0;
}

// Any bytes through the codecs that checkpoints name, the first byte choosing which: decoded within
// the limit, or refused.
#include <tessera/encoding/codec.h>

#include <iterator>

#include "fuzz/fuzz_support.h"
#include "fuzz/mutators.h"

using namespace tessera;

TESSERA_MUTATOR(mutate_words)

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  constexpr std::uint64_t kLimit = 1 << 20;
  constexpr const char* kCodecs[] = {"hdf5.deflate:65536",  "hdf5.lzf:65536",  "hdf5.shuffle:4",
                                     "hdf5.shuffle:7",      "hdf5.fletcher32", "stream.zstd",
                                     "stream.rot13",        "slice:2:8",       "slice:2",
                                     "stream.zstd@x/1.2.3", "stream.zstd/2",   "hdf5.szip:1"};
  const std::string codec = kCodecs[data[0] % std::size(kCodecs)];
  const ByteView in(reinterpret_cast<const std::byte*>(data + 1), size - 1);
  const bool known = has_codec(codec);
  fuzz::refuse_cleanly([&] {
    const std::uint64_t length = decode(codec, in, kLimit).size();
    if (!known || length > kLimit) std::abort();
    // HDF5's sizes are part of the codec.
    if (codec.starts_with("hdf5.") && length > std::max<std::uint64_t>(65536, in.size()))
      std::abort();
  });
  return 0;
}

// Arbitrary bytes as the index of weight deltas, or as one's blob over a tensor of so many bytes as
// the second byte says: reading either succeeds or throws tessera::Error.
#include <tessera/format/safetensors.h>
#include <tessera/storage/memory_file_system.h>

#include "fuzz/fuzz_support.h"
#include "fuzz/mutators.h"

TESSERA_MUTATOR(mutate_words)

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tessera;
  if (size < 2) return 0;
  const ByteView rest = std::as_bytes(std::span(data, size)).subspan(2);
  fuzz::refuse_cleanly([&] {
    if (data[0] == 'i') {
      MemoryFileSystem fs;
      fs.write_file("/fuzz/model.safetensors.index.json", rest);
      read_delta_index(*fs.open_directory("/fuzz"));
      return;
    }
    const char* const encoding = data[0] == 'o' ? "overwrite" : data[0] == 'a' ? "other" : "xor";
    const DeltaIndex index{"1",
                           "0",
                           encoding,
                           data[0] == 'c' ? "other" : "zstd",
                           data[0] == 's' ? "other" : "adler32",
                           false,
                           nullptr};
    Bytes tensor(data[1]);
    apply_delta(index, rest, "00000001", tensor);
  });
  return 0;
}

// Any bytes as our own manifest, beside files of a checkpoint: taken or refused; what is taken
// reads back as it is written.
#include <tessera/ops/seal.h>
#include <tessera/storage/memory_file_system.h>

#include "fuzz/fuzz_support.h"
#include "fuzz/mutators.h"

using namespace tessera;

TESSERA_MUTATOR(mutate_seal)

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const ByteView text{reinterpret_cast<const std::byte*>(data), size};
  fuzz::refuse_cleanly([&] {
    const Seal seal = decode_seal(text);
    const Bytes again = encode_seal(seal);
    if (encode_seal(decode_seal(again)) != again) std::abort();
    if (again.size() > seal_size_bound(seal)) std::abort();
  });
  MemoryFileSystem fs;
  fs.write_file("/ck/tessera.manifest.json", text);
  fs.write_file("/ck/a", text.first(std::min<std::size_t>(size, 4)));
  fuzz::refuse_cleanly([&] { read_seal(*fs.open_directory("/ck"), ""); });
  fuzz::refuse_cleanly([&] {
    missing_files(*fs.open_directory("/ck"));
    sealed_format(*fs.open_directory("/ck"));
  });
  return 0;
}

// Arbitrary bytes as the `.metadata` of a torch-dcp checkpoint, beside one small data file:
// parsing, building the manifest (tolerant and strict) and locating either succeed or throw
// tessera::Error.
#include <tessera/format/torch_dcp.h>

#include "fuzz/fuzz_checkpoint.h"
#include "fuzz/mutators.h"

TESSERA_MUTATOR(mutate_pickle)

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  tessera::MemoryFileSystem fs;
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  fs.write_file("/ck/.metadata", {bytes, size});
  // The same bytes serve as items, so that zips and blobs inside the input can be reached too.
  fs.write_file("/ck/__0_0.distcp", {bytes, size});
  tessera::fuzz::read_checkpoint(tessera::torch_dcp_driver(), fs, "/ck");
  return 0;
}

// Arbitrary bytes as the `.snapshot_metadata` of a snapshot, JSON or YAML, beside one small data
// file: reading and locating either succeed or throw tessera::Error.
#include <tessera/format/torchsnapshot.h>

#include "fuzz/fuzz_checkpoint.h"
#include "fuzz/mutators.h"

TESSERA_MUTATOR(mutate_lines)

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  tessera::MemoryFileSystem fs;
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  fs.write_file("/ck/.snapshot_metadata", {bytes, size});
  fs.write_file("/ck/x", {bytes, size < 64 ? size : 64});
  fs.write_file("/ck/0/x", {bytes, size});
  tessera::fuzz::read_checkpoint(tessera::torchsnapshot_driver(), fs, "/ck");
  return 0;
}

// Arbitrary bytes as the `.metadata` of a torch-dcp checkpoint, beside one small data file:
// parsing, building the manifest (tolerant and strict) and locating either succeed or throw
// tessera::Error.
#include <tessera/base/error.h>
#include <tessera/format/torch_dcp.h>
#include <tessera/storage/memory_file_system.h>

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

namespace {

void open(const tessera::Place& place, bool tolerate) {
  tessera::ReadOptions options;
  options.memory_limit_bytes = 1 << 22;
  options.tolerate_damage = tolerate;
  try {
    tessera::Manifest manifest = tessera::torch_dcp_driver().manifest(place, options);
    std::vector<std::uint32_t> all(manifest.tensors.size());
    std::iota(all.begin(), all.end(), 0u);
    tessera::torch_dcp_driver().locate(place, manifest, all, options);
  } catch (const tessera::Error&) {
    // Refused with a message: what untrusted bytes deserve.
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  tessera::MemoryFileSystem fs;
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  fs.write_file("/ck/.metadata", {bytes, size});
  // The same bytes serve as items, so that zips and blobs inside the input can be reached too.
  fs.write_file("/ck/__0_0.distcp", {bytes, size});
  const auto directory = fs.open_directory("/ck");
  const tessera::Place place{directory.get(), "", "fuzz"};
  open(place, true);
  open(place, false);
  return 0;
}

// Arbitrary bytes as the `.snapshot_metadata` of a snapshot, JSON or YAML, beside one small data
// file: reading and locating either succeed or throw tessera::Error.
#include <tessera/base/error.h>
#include <tessera/format/torchsnapshot.h>
#include <tessera/storage/memory_file_system.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <vector>

namespace {

void open(const tessera::Place& place, bool tolerate) {
  tessera::ReadOptions options;
  options.memory_limit_bytes = 1 << 22;
  options.tolerate_damage = tolerate;
  try {
    tessera::Manifest manifest = tessera::torchsnapshot_driver().manifest(place, options);
    std::vector<std::uint32_t> all(manifest.tensors.size());
    std::iota(all.begin(), all.end(), 0u);
    tessera::torchsnapshot_driver().locate(place, manifest, all, options);
  } catch (const tessera::Error& error) {
    if (error.code() == tessera::Code::kInternal) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  tessera::MemoryFileSystem fs;
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  fs.write_file("/ck/.snapshot_metadata", {bytes, size});
  fs.write_file("/ck/x", {bytes, size < 64 ? size : 64});
  fs.write_file("/ck/0/x", {bytes, size});
  const auto directory = fs.open_directory("/ck");
  const tessera::Place place{directory.get(), "", "fuzz"};
  open(place, true);
  open(place, false);
  return 0;
}

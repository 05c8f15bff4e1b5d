// Any bytes as a safetensors file: opened or refused. What opens stays inside the file, and can be
// planned for writing again.
#include <tessera/format/registry.h>
#include <tessera/format/safetensors.h>
#include <tessera/storage/memory_file_system.h>

#include "fuzz/fuzz_support.h"
#include "fuzz/mutators.h"

using namespace tessera;

TESSERA_MUTATOR(mutate_safetensors)

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  MemoryFileSystem fs;
  fs.write_file("/c/model.safetensors", {reinterpret_cast<const std::byte*>(data), size});
  const auto directory = fs.open_directory("/c");
  const Place place{directory.get(), "model.safetensors", "fuzz"};
  probe_place(safetensors_driver(), place);
  fuzz::refuse_cleanly([&] {
    const Manifest manifest = safetensors_driver().manifest(place, {});
    for (const StoredTensor& tensor : manifest.tensors) {
      const Source& source = manifest.source(tensor, 0);
      if (source.offset > size || source.length > size - source.offset) std::abort();
      if (source.length != static_cast<std::uint64_t>(tensor.spec.size_bytes()) &&
          tensor.chunk_count == 1)
        std::abort();
    }
    safetensors_driver().output_plan(manifest, {}).check(manifest);
  });
  return 0;
}

// Arbitrary bytes as metadata.pkl of torch_checkpointing: reading either succeeds or throws
// tessera::Error.
#include <tessera/storage/memory_file_system.h>

#include "fuzz/fuzz_support.h"
#include "fuzz/mutators.h"
#include "lib/format/torch_checkpointing/metadata.h"

TESSERA_MUTATOR(mutate_pickle)

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tessera;
  MemoryFileSystem fs;
  fs.write_file("/fuzz/metadata.pkl", std::as_bytes(std::span(data, size)));
  const auto directory = fs.open_directory("/fuzz");
  fuzz::refuse_cleanly([&] {
    const auto metadata = checkpointing::read_metadata(*directory, 0);
    if (!metadata) return;
    for (const auto& [name, item] : metadata->items)
      for (const auto& [path, entry] : item.paths)
        for (const checkpointing::Group& group : entry.groups)
          if (!group.ranks.empty()) checkpointing::chunks_on(group, group.ranks.front());
  });
  return 0;
}

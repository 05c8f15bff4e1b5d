// Any bytes as a zip archive: directory, every local header, every record.
#include <tessera/encoding/zip_reader.h>

#include "fuzz/fuzz_support.h"
#include "fuzz/mutators.h"

using namespace tessera;

TESSERA_MUTATOR(mutate_archive)

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const fuzz::InputFile file(data, size);
  fuzz::refuse_cleanly([&] {
    ZipReader zip(ByteWindow::whole(file));
    for (const ZipEntry& entry : zip.entries()) {
      if (zip.find(entry.name) != &entry) std::abort();
      fuzz::refuse_cleanly([&] {
        const std::uint64_t at = zip.data_offset(entry);
        if (at > size || entry.size_bytes > size - at) std::abort();
        if (zip.read(entry).size() != entry.size_bytes) std::abort();
      });
    }
  });
  return 0;
}

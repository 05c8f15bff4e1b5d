// Any bytes as a torch archive: every view must lie inside of its storage, every storage inside of
// the file.
#include <tessera/encoding/torch_archive.h>

#include "fuzz/fuzz_support.h"
#include "fuzz/mutators.h"

using namespace tessera;

namespace {

void check(const TorchArchive& archive, std::uint64_t size) {
  for (const ArchiveStorage& storage : archive.storages) {
    if (!storage.located || storage.offset > size || storage.size_bytes > size - storage.offset)
      std::abort();
  }
  for (const ArchiveTensor& tensor : archive.tensors) {
    for (const std::uint32_t part : tensor.parts) {
      if (part >= archive.tensors.size()) std::abort();
    }
    if (tensor.layout != ArchiveTensor::Layout::kStrided || tensor.shape.numel() == 0) continue;
    std::int64_t last = tensor.storage_offset;
    for (int d = 0; d < tensor.shape.rank(); ++d)
      last += (tensor.shape[d] - 1) * tensor.strides[static_cast<std::size_t>(d)];
    const std::uint64_t end = static_cast<std::uint64_t>(last + 1) *
                              static_cast<std::uint64_t>(element_bytes(tensor.dtype));
    if (last < 0 || end > archive.storages.at(tensor.storage).size_bytes) std::abort();
  }
}

}  // namespace

TESSERA_MUTATOR(mutate_archive)

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const fuzz::InputFile file(data, size);
  const ByteWindow window = ByteWindow::whole(file);
  looks_like_torch_archive(window);
  fuzz::refuse_cleanly([&] { open_torch_archive(window, {}); });
  fuzz::refuse_cleanly([&] { open_torch_archive(window, {.modules_as_state = true}); });
  fuzz::refuse_cleanly([&] {
    TorchArchive archive =
        open_torch_archive(window, {.allow_opaque_root = true, .modules_as_state = true});
    locate_storages(window, archive);
    check(archive, size);
  });
  return 0;
}

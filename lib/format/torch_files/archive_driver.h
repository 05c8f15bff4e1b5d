#pragma once
// What the drivers of formats made of torch.save files share.
#include <tessera/format/format_driver.h>

#include "lib/format/torch_files/archive_manifest.h"

namespace tessera {

class ArchiveDriver : public FormatDriver {
 public:
  void locate(const Place& place, Manifest& manifest, std::span<const std::uint32_t> tensors,
              const ReadOptions& options) const override {
    locate_archives(*place.directory, manifest, tensors, options);
  }
};

}  // namespace tessera

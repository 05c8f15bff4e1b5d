#pragma once
// What the drivers of formats made of torch.save files share.
#include <tessera/format/format_driver.h>

#include "lib/format/torch_files/archive_manifest.h"
#include "lib/format/torch_files/equal_copies.h"

namespace tessera {

class ArchiveDriver : public FormatDriver {
 public:
  void locate(const Place& place, Manifest& manifest, std::span<const std::uint32_t> tensors,
              const ReadOptions& options) const override {
    locate_archives(*place.directory, manifest, tensors, options);
  }
};

/// Several ranks may have stored one chunk each: whoever reads elements gets copies that are equal.
class CopiedArchiveDriver : public ArchiveDriver {
 public:
  void locate(const Place& place, Manifest& manifest, std::span<const std::uint32_t> tensors,
              const ReadOptions& options) const override {
    ArchiveDriver::locate(place, manifest, tensors, options);
    if (!options.tolerate_damage) require_equal_copies(*place.directory, manifest, tensors);
  }
};

}  // namespace tessera

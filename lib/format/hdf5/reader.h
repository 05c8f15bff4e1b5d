#pragma once
// From tessera-hdf5's report to a Manifest. Names are HDF5 paths with '.' for '/': datasets are
// tensors, datasets of text and attributes ("owner@name") values. A dataset that cannot be read is
// listed all the same, with a pending source that remembers why; refuse_pending() says it when
// somebody wants the bytes.
#include <tessera/format/format_driver.h>

namespace tessera::h5 {

Manifest read_manifest(const Place& place, const ReadOptions& options);
void refuse_pending(const Manifest& manifest, std::span<const std::uint32_t> tensors);

}  // namespace tessera::h5

#pragma once
// Chunks of a chunked dataset, and mappings of a virtual one.
#include <hdf5.h>

#include <string>
#include <vector>

#include "tools/hdf5_helper/channel.h"

namespace tessera::h5 {

/// Chunk extents, filters and every stored chunk. False with the reason when it cannot be listed.
bool write_chunked(Channel& channel, WireWriter& report, hid_t dataset, hid_t creation,
                   const std::vector<hsize_t>& extents, std::string& why);

/// File, dataset and selections of every mapping.
bool write_virtual(WireWriter& report, hid_t creation, std::string& why);

}  // namespace tessera::h5

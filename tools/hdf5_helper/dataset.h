#pragma once
// One dataset as a record: type, extents, and where its bytes lie. No raw data is read, but for
// compact datasets (they live in the header) and texts (they are values).
#include <hdf5.h>

#include <string>

#include "tools/hdf5_helper/channel.h"

namespace tessera::h5 {

/// Appends the kDataset, kText or kProblem record; may send what `report` holds on the way.
void write_dataset(Channel& channel, WireWriter& report, hid_t dataset, const std::string& path);

}  // namespace tessera::h5

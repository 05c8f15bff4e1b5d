#pragma once
// One HDF5 file as a plan: pure, as every writer. See docs/formats/hdf5.md for each byte.
#include <tessera/format/format_driver.h>

namespace tessera::h5 {

OutputPlan plan_output(const Manifest& source, const TargetRequest& request);

}  // namespace tessera::h5

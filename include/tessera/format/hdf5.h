#pragma once
// HDF5 files: any tree of datasets, Keras' weights among them. Reading needs the program
// tessera-hdf5 (see docs/formats/hdf5.md); writing needs nothing.
#include <tessera/format/format_driver.h>

namespace tessera {

const FormatDriver& hdf5_driver();

}  // namespace tessera

#pragma once
// Every format that can be written, as far as this build reads it back.
#include <tessera/base/error.h>
#include <tessera/format/registry.h>

#include <vector>

#include "lib/format/hdf5/helper.h"

namespace tessera::testing {

/// False in a build without libhdf5.
inline bool reads_hdf5() {
  try {
    h5::find_helper();
    return true;
  } catch (const Error&) {
    return false;
  }
}

inline std::vector<const FormatDriver*> written_formats() {
  std::vector<const FormatDriver*> out;
  for (const FormatDriver* driver : all_formats())
    if (driver->capabilities().writes && (driver->id() != "hdf5" || reads_hdf5()))
      out.push_back(driver);
  return out;
}

}  // namespace tessera::testing

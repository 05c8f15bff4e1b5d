#pragma once
// What the tests of the HDF5 format share.
#include <tessera/base/error.h>
#include <tessera/format/hdf5.h>

#include <catch2/catch.hpp>
#include <string>

#include "lib/format/hdf5/helper.h"
#include "tests/support/written_checkpoint.h"

namespace tessera::testing {

/// False, with a word about it, in a build without libhdf5.
inline bool has_hdf5() {
  try {
    h5::find_helper();
    return true;
  } catch (const Error&) {
    WARN("skipped: this build has no tessera-hdf5");
    return false;
  }
}

inline Place hostile_place(const SampleCase& hostile, const std::string& file) {
  return {hostile.directory.get(), file, file};
}

template <class F>
Status status_of(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.status();
  }
  return {};
}

}  // namespace tessera::testing

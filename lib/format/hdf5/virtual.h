#pragma once
// Virtual datasets: elements that lie in other datasets, of this file or of files beside it. We
// resolve them ourselves, so that a missing source is an error (the library reads fill values), and
// the elements are read once, where they lie.
//
// The i-th selected element of the target, in row-major order, is the i-th selected one of the
// source. Regular selections whose counts agree per dimension are resolved (dimensions of which one
// element is selected may be left out on either side); others are kUnsupported.
#include <string>
#include <vector>

#include "lib/format/hdf5/files.h"
#include "lib/format/hdf5/pieces.h"

namespace tessera::h5 {

/// The pieces of `dataset`, found in `file`; places that no mapping names hold the fill value.
/// Throws kCorrupt for a missing source, one outside of the folder, and selections that leave a
/// dataset.
std::vector<Piece> resolve_virtual(FileSet& files, const std::string& file, const Dataset& dataset,
                                   DType dtype);

}  // namespace tessera::h5

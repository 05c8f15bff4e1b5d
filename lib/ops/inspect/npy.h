#pragma once
// NumPy's .npy container, versions 1.0 and 2.0. Source: numpy.lib.format.
#include <tessera/base/bytes.h>
#include <tessera/tensor/dtype.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

/// A whole file of dense row-major elements. Types that NumPy lacks (bfloat16, float8, quantized)
/// become unsigned bit patterns of their width, and `note` says so.
Bytes make_npy(DType dtype, const std::vector<std::int64_t>& shape, ByteView elements,
               std::string& note);

}  // namespace tessera

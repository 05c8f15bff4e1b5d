#pragma once
// HDF5 datatypes as our dtypes.
//
//   integer, enum of integers, bitfield   u/int8..64        enum {FALSE, TRUE}   bool
//   IEEE floats by their fields           float16, 32, 64; bfloat16; float8_e4m3fn, float8_e5m2
//   compound {r, i} of two floats         complex32, 64, 128
//
// A text attribute `dtype` names what raw bits mean: on an integer or opaque dataset whose elements
// are as wide as that dtype, it wins ("bfloat16" over uint16, as Keras and we write it).
#include <tessera/tensor/dtype.h>

#include <optional>
#include <string>
#include <string_view>

#include "lib/format/hdf5/report.h"

namespace tessera::h5 {

inline constexpr std::string_view kDtypeAttribute = "dtype";

/// nullopt: it has no counterpart.
std::optional<DType> dtype_of(const TypeInfo& type, std::string_view dtype_attribute);
/// For messages: "an integer of 3 bytes", "a compound of a, b".
std::string describe_type(const TypeInfo& type);

}  // namespace tessera::h5

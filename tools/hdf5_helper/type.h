#pragma once
// What a datatype is, in the few words of the wire format.
#include <hdf5.h>

#include "lib/format/hdf5/wire.h"

namespace tessera::h5 {

/// class, size, byte order, and for floats the place of each field; for others a description.
void write_type(WireWriter& out, hid_t type);

bool is_text(hid_t type);
/// h5py's bool: an enum of one byte with FALSE = 0 and TRUE = 1.
bool is_bool(hid_t type);
/// h5py's complex: a compound {r, i} of two equal floats side by side.
bool is_complex(hid_t type);

}  // namespace tessera::h5

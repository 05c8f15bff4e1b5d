#pragma once
// Attributes, and datasets of text, as values of the wire format.
#include <hdf5.h>

#include <string>

#include "lib/format/hdf5/wire.h"

namespace tessera::h5 {

/// The most elements one value may have.
inline constexpr hssize_t kMaxValueNumel = 1 << 20;

/// Appends the value; false, with the reason, when it has no form here.
bool write_attribute_value(WireWriter& out, hid_t attribute, std::string& why);
bool write_text_value(WireWriter& out, hid_t dataset, std::string& why);

}  // namespace tessera::h5

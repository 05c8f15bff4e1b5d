#pragma once
// Elements as text, for people: the shortest digits that are unique in their own type.
#include <tessera/base/bytes.h>
#include <tessera/tensor/dtype.h>

#include <string>
#include <vector>

namespace tessera {

/// False for types without arithmetic here: their bit patterns are shown in hex.
bool has_number_text(DType dtype);
/// `count` elements of dense `bytes`.
std::vector<std::string> element_texts(DType dtype, ByteView bytes, std::int64_t count);

}  // namespace tessera

#pragma once
// What a Source's flags ask of every element: byte order, complex conjugate, negation.
#include <tessera/base/bytes.h>
#include <tessera/tensor/dtype.h>

#include <cstdint>

namespace tessera {

/// Applies Source::Flag bits in place to dense elements. Throws kUnsupported where a dtype has no
/// such form.
void apply_source_flags(DType dtype, std::uint8_t flags, MutableBytes elements);

}  // namespace tessera

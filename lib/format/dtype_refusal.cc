#include "lib/format/dtype_refusal.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/tensor/cast.h>

namespace tessera {

namespace {

/// How the user gets the tensor to be float32, or around it where its elements are not cast.
/// --dtype leaves alone what commonly comes with scales (float8).
std::string cast_hint(const StoredTensor& tensor) {
  const DType dtype = tensor.spec.dtype;
  const bool cast = is_floating(dtype) && is_castable(dtype) && tensor.quant < 0;
  if (!cast) return fmt::format("leave it out with --exclude \"{}\"", printable(tensor.name));
  return fmt::format("cast it with --keep-dtype \"{}=float32\"", printable(tensor.name));
}

bool is_plain_float(DType dtype) {
  return is_floating(dtype) && is_castable(dtype) && element_bytes(dtype) > 1;
}

}  // namespace

std::string one_type_hint(const StoredTensor& a, const StoredTensor& b) {
  for (const StoredTensor* tensor : {&a, &b})
    if (!is_plain_float(tensor->spec.dtype)) return cast_hint(*tensor);
  return "cast with --dtype float32";
}

void refuse_dtype(const StoredTensor& tensor, std::string_view format) {
  in_tensor(tensor.name, [&] {
    fail(Code::kUnsupported,
         fmt::format("{} cannot hold {}{}", format, torch_name(tensor.spec.dtype),
                     tensor.quant >= 0 ? " with quantizer parameters" : ""),
         cast_hint(tensor));
  });
  TESSERA_CHECK(false);
}

}  // namespace tessera

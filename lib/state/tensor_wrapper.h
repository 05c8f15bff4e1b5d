#pragma once
// Tensors of a subclass that wraps other tensors (torch.Tensor._make_wrapper_subclass): 8-bit
// optimizer state, quantized weights. Pickle keeps one as an object,
//
//   torch._tensor._rebuild_from_type_v2(torch._utils._rebuild_wrapper_subclass, CLASS,
//       (CLASS, dtype, size, ...), {"codes": tensor, "scale": tensor, "block_size": 256})
//
// and so does a Value. Readers make a plain tensor of one around a single tensor of its own type
// and shape (lib/encoding/torch_wrappers.cc); what is left here has several parts.
#include <tessera/state/manifest.h>
#include <tessera/state/value.h>
#include <tessera/tensor/shape.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

/// The class of such an object, "torchao.optim.subclass_8bit.OptimState8bit"; "" for other values.
std::string wrapper_class(const Value& value);

/// The class of any object to those who use it, where pickle names a function that makes it: of a
/// wrapper its own, "numpy.ndarray" of an array.
std::string object_class(const Value& object);

/// An array that numpy pickled.
bool is_numpy_array(const Value& value);

/// Type and shape that the wrapper has to those who use it; nullopt for other values, and where the
/// object does not say.
std::optional<TensorSpec> wrapper_spec(const Value& value);

/// Its tensors by the names of the attributes that hold them, in stored order; those of a wrapper
/// inside by both ("tensor_impl.scale").
std::vector<std::pair<std::string, std::uint32_t>> wrapper_parts(const Value& value);

/// The object with None for these tensors: its class and what else it holds.
Value without_parts(const Value& value);

/// A part of an entry that is such an object, listed as a tensor.
struct PartRow {
  std::size_t entry = 0;  // in StateDict::entries
  std::string suffix;     // "#codes", "#2.codes" where an entry's own name is NAME#codes
  std::uint32_t tensor = 0;
};
std::vector<PartRow> part_rows(const StateDict& state);

/// Gives the parts of the manifest's wrappers the names of part_rows(), and a tensor that two of
/// them have to each its own. Idempotent.
void name_parts(Manifest& manifest);

}  // namespace tessera

#include "lib/format/megatron_torch/ranks.h"

#include <algorithm>
#include <vector>

#include "lib/format/torch_files/archive_bytes.h"
#include "lib/state/edit/tensor_remapper.h"

namespace tessera::megatron_torch {
namespace {

/// The tensors of a value in the order of a walk, and the value with their positions for numbers.
Value numbered(const Value& value, std::vector<std::uint32_t>& tensors) {
  TensorRemapper number([&](std::uint32_t index) {
    tensors.push_back(index);
    return static_cast<std::uint32_t>(tensors.size() - 1);
  });
  return number(value);
}

}  // namespace

bool same_value(const TorchArchive& a, const Value& x, const TorchArchive& b, const Value& y) {
  std::vector<std::uint32_t> of_x, of_y;
  if (!(numbered(x, of_x) == numbered(y, of_y)) || of_x.size() != of_y.size()) return false;
  for (std::size_t k = 0; k < of_x.size(); ++k)
    if (!known_equal(a, of_x[k], b, of_y[k]).value_or(false)) return false;
  return true;
}

}  // namespace tessera::megatron_torch

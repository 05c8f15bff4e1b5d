#include "lib/format/megatron_torch/ranks.h"

#include <algorithm>
#include <vector>

#include "lib/format/torch_files/archive_source.h"
#include "lib/state/edit/tensor_remapper.h"

namespace tessera::megatron_torch {
namespace {

bool fills_storage(const TorchArchive& archive, const ArchiveTensor& tensor) {
  const ArchiveStorage& storage = archive.storages[tensor.storage];
  return is_dense(tensor) && tensor.storage_offset == 0 &&
         static_cast<std::uint64_t>(TensorSpec{tensor.dtype, tensor.shape}.size_bytes()) ==
             storage.size_bytes;
}

/// The tensors of a value in the order of a walk, and the value with their positions for numbers.
Value numbered(const Value& value, std::vector<std::uint32_t>& tensors) {
  TensorRemapper number([&](std::uint32_t index) {
    tensors.push_back(index);
    return static_cast<std::uint32_t>(tensors.size() - 1);
  });
  return number(value);
}

}  // namespace

std::optional<bool> same_bytes(const TorchArchive& a, std::uint32_t i, const TorchArchive& b,
                               std::uint32_t j) {
  const ArchiveTensor &x = a.tensors[i], &y = b.tensors[j];
  if (x.dtype != y.dtype || x.shape != y.shape || x.flags != y.flags) return false;
  if (x.shape.numel() == 0) return true;
  if (x.layout != ArchiveTensor::Layout::kStrided || x.layout != y.layout) return std::nullopt;
  const ArchiveStorage &s = a.storages[x.storage], &t = b.storages[y.storage];
  if (!s.has_crc || !t.has_crc) return std::nullopt;
  const bool same_storage = s.crc32 == t.crc32 && s.size_bytes == t.size_bytes;
  if (same_storage && x.storage_offset == y.storage_offset && x.strides == y.strides) return true;
  if (!same_storage && fills_storage(a, x) && fills_storage(b, y)) return false;
  return std::nullopt;
}

bool same_value(const TorchArchive& a, const Value& x, const TorchArchive& b, const Value& y) {
  std::vector<std::uint32_t> of_x, of_y;
  if (!(numbered(x, of_x) == numbered(y, of_y)) || of_x.size() != of_y.size()) return false;
  for (std::size_t k = 0; k < of_x.size(); ++k)
    if (!same_bytes(a, of_x[k], b, of_y[k]).value_or(false)) return false;
  return true;
}

}  // namespace tessera::megatron_torch

#include "lib/format/torch_rank_files/rank_archive.h"

#include <fmt/format.h>
#include <tessera/base/error.h>

namespace tessera::rank_files {

std::uint32_t RankArchive::add(const TensorSpec& spec, std::vector<StoragePiece> pieces) {
  const auto number = static_cast<std::uint32_t>(tensors_.size());
  ArchiveWriteTensor tensor;
  tensor.spec = spec;
  tensor.storage = number;
  tensors_.push_back(tensor);
  storages_.push_back(std::move(pieces));
  return number;
}

std::uint32_t RankArchive::whole(std::uint32_t index) {
  if (const auto known = whole_.find(index); known != whole_.end()) return known->second;
  const StoredTensor& stored = source_.tensors[index];
  if (is_sub_byte(stored.spec.dtype))
    fail(Code::kUnsupported, fmt::format("PyTorch has no dtype {}", torch_name(stored.spec.dtype)));
  StoragePiece piece;
  piece.tensor = index;
  piece.chunk = Chunk::whole_of(Box::whole(stored.spec.shape));
  const std::uint32_t number = add(stored.spec, {std::move(piece)});
  whole_.emplace(index, number);
  tensors_[number].is_parameter = stored.is_parameter;
  tensors_[number].requires_grad = stored.requires_grad;
  if (stored.quant >= 0) {
    QuantParams params = source_.quant[static_cast<std::size_t>(stored.quant)];
    params.scales = adopt(params.scales);
    params.zero_points = adopt(params.zero_points);
    quant_.push_back(std::move(params));
    tensors_[number].quant = &quant_.back();
  }
  return number;
}

Value RankArchive::adopt(const Value& value) {
  TensorRemapper remap([this](std::uint32_t index) { return whole(index); });
  return remap(value);
}

ArchiveFile RankArchive::finish(std::string path, std::string prefix, Value root) {
  return {std::move(path), std::move(prefix), std::move(root), std::move(tensors_),
          std::move(storages_)};
}

}  // namespace tessera::rank_files

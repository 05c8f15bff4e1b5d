#include "lib/format/torch_files/archive_draft.h"

#include <tessera/base/error.h>

#include <algorithm>
#include <bit>
#include <optional>
#include <utility>

#include "lib/format/dtype_refusal.h"

namespace tessera {

StoragePiece piece_of(const Manifest& source, std::uint32_t tensor, std::int64_t begin,
                      std::int64_t end) {
  StoragePiece piece;
  piece.tensor = tensor;
  piece.chunk = {Box::whole(source.tensors.at(tensor).spec.shape), begin, end};
  return piece;
}

StoragePiece piece_of(const Manifest& source, std::uint32_t tensor) {
  StoragePiece piece;
  piece.tensor = tensor;
  piece.chunk = Chunk::whole_of(Box::whole(source.tensors.at(tensor).spec.shape));
  return piece;
}

void ArchiveDraft::require_held(const StoredTensor& tensor) const {
  if (is_sub_byte(tensor.spec.dtype) || (tensor.quant >= 0 && !rules_.quantized))
    refuse_dtype(tensor, rules_.format);
}

std::uint32_t ArchiveDraft::push(const TensorSpec& spec, std::uint32_t storage) {
  ArchiveWriteTensor tensor;
  tensor.spec = spec;
  tensor.storage = storage;
  file_.tensors.push_back(tensor);
  return static_cast<std::uint32_t>(file_.tensors.size() - 1);
}

Value ArchiveDraft::add(const TensorSpec& spec, std::vector<StoragePiece> pieces) {
  const auto storage = static_cast<std::uint32_t>(file_.storages.size());
  file_.storages.push_back(std::move(pieces));
  return Value::tensor(push(spec, storage));
}

void ArchiveDraft::keep_marks(std::uint32_t number, const StoredTensor& tensor) {
  if (!rules_.parameters) return;
  file_.tensors[number].is_parameter = tensor.is_parameter;
  file_.tensors[number].requires_grad = tensor.requires_grad;
}

Value ArchiveDraft::part(std::uint32_t index, const Shape& shape,
                         std::vector<StoragePiece> pieces) {
  const StoredTensor& tensor = source_.tensors.at(index);
  require_held(tensor);
  const Value value = add({tensor.spec.dtype, shape}, std::move(pieces));
  keep_marks(value.tensor_index(), tensor);
  return value;
}

Value ArchiveDraft::reshaped(std::uint32_t index, const Shape& shape) {
  return part(index, shape, {piece_of(source_, index)});
}

Value ArchiveDraft::whole(std::uint32_t index) { return Value::tensor(take_whole(index)); }

std::uint32_t ArchiveDraft::take_whole(std::uint32_t index) {
  if (const auto known = taken_.find(index); known != taken_.end()) return known->second;
  const StoredTensor& tensor = source_.tensors.at(index);
  require_held(tensor);
  const std::uint32_t number = push(tensor.spec, storage_of(index));
  taken_.emplace(index, number);
  keep_marks(number, tensor);
  if (tensor.quant < 0) return number;
  // The parameters may be tensors themselves, of this file then.
  quant_.push_back(source_.quant[static_cast<std::size_t>(tensor.quant)]);
  QuantParams& params = quant_.back();
  params.scales = remap_(params.scales);
  params.zero_points = remap_(params.zero_points);
  file_.tensors[number].quant = &params;
  return number;
}

/// The bytes of the source that a tensor is, and how they are seen; nullopt: not in one piece.
std::optional<ArchiveDraft::Place> ArchiveDraft::place_of(const StoredTensor& tensor) const {
  if (tensor.chunk_count != 1 || tensor.spec.shape.numel() == 0) return std::nullopt;
  const Source& stored = source_.source(tensor, 0);
  if (stored.kind != Source::Kind::kExtent || !source_.chunk(tensor, 0).is_whole_box())
    return std::nullopt;
  const auto extents = tensor.spec.shape.extents();
  return Place{stored.file,
               stored.offset,
               stored.flags,
               tensor.spec.dtype,
               {extents.begin(), extents.end()},
               stored.side > 0 ? source_.strides[stored.side - 1] : std::vector<std::int64_t>{}};
}

std::uint32_t ArchiveDraft::storage_of(std::uint32_t index) {
  const auto next = static_cast<std::uint32_t>(file_.storages.size());
  if (const auto place = rules_.ties ? place_of(source_.tensors[index]) : std::nullopt) {
    const auto [found, is_new] = places_.emplace(*place, next);
    if (!is_new) return found->second;
  }
  file_.storages.push_back({piece_of(source_, index)});
  return next;
}

Value ArchiveDraft::flat(DType dtype, std::int64_t numel, std::vector<StoragePiece> pieces) {
  const auto width = static_cast<std::uint64_t>(element_bytes(dtype));
  std::erase_if(pieces, [](const StoragePiece& piece) {
    return piece.tensor < StoragePiece::kBytes && piece.chunk.numel() == 0;
  });
  std::int64_t filled = 0;
  for (const StoragePiece& piece : pieces)
    filled += piece.tensor == StoragePiece::kZeros
                  ? static_cast<std::int64_t>(piece.zero_bytes / width)
                  : piece.chunk.numel();
  TESSERA_CHECK(filled <= numel);
  if (filled < numel) {
    StoragePiece zeros;
    zeros.zero_bytes = static_cast<std::uint64_t>(numel - filled) * width;
    pieces.push_back(std::move(zeros));
  }
  return add({dtype, Shape{numel}}, std::move(pieces));
}

Value ArchiveDraft::float_scalar(double number) {
  const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(number));
  StoragePiece piece;
  piece.tensor = StoragePiece::kBytes;
  for (int i = 0; i < 4; ++i) piece.bytes.push_back(static_cast<char>((bits >> (8 * i)) & 0xff));
  return add({DType::kFloat32, Shape{}}, {std::move(piece)});
}

ArchiveFile ArchiveDraft::finish(std::string path, Value root, std::string prefix) {
  if (prefix.empty()) {
    prefix = path.substr(path.rfind('/') + 1);  // npos + 1 is 0
    prefix = prefix.substr(0, prefix.rfind('.'));
  }
  file_.path = std::move(path);
  file_.prefix = std::move(prefix);
  file_.root = std::move(root);
  return std::move(file_);
}

}  // namespace tessera

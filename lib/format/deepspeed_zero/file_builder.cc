#include "lib/format/deepspeed_zero/file_builder.h"

#include <tessera/base/error.h>

#include <bit>

namespace tessera::deepspeed {

StoragePiece piece_of(const Manifest& source, std::uint32_t tensor, std::int64_t begin,
                      std::int64_t end) {
  StoragePiece piece;
  piece.tensor = tensor;
  piece.chunk = {Box::whole(source.tensors.at(tensor).spec.shape), begin, end};
  return piece;
}

StoragePiece FileBuilder::whole(std::uint32_t index) const {
  return piece_of(source_, index, 0, source_.tensors.at(index).spec.shape.numel());
}

std::uint32_t FileBuilder::add(const TensorSpec& spec, std::vector<StoragePiece> pieces) {
  ArchiveWriteTensor tensor;
  tensor.spec = spec;
  tensor.storage = static_cast<std::uint32_t>(file_.storages.size());
  std::erase_if(pieces, [](const StoragePiece& piece) {
    return piece.tensor < StoragePiece::kBytes && piece.chunk.numel() == 0;
  });
  file_.storages.push_back(std::move(pieces));
  file_.tensors.push_back(tensor);
  return static_cast<std::uint32_t>(file_.tensors.size() - 1);
}

std::uint32_t FileBuilder::take(std::uint32_t index) {
  const auto known = taken_.find(index);
  if (known != taken_.end()) return known->second;
  const StoredTensor& stored = source_.tensors.at(index);
  if (stored.quant >= 0)
    in_tensor(stored.name,
              [&] { fail(Code::kUnsupported, "a quantized tensor in a DeepSpeed checkpoint"); });
  const std::uint32_t mine = add(stored.spec, {whole(index)});
  taken_.emplace(index, mine);
  return mine;
}

Value FileBuilder::tensor(std::uint32_t index) { return Value::tensor(take(index)); }

Value FileBuilder::flattened(std::uint32_t index) {
  const TensorSpec& spec = source_.tensors.at(index).spec;
  return Value::tensor(add({spec.dtype, Shape{spec.shape.numel()}}, {whole(index)}));
}

Value FileBuilder::flat(DType dtype, std::int64_t numel, std::vector<StoragePiece> pieces) {
  const auto width = static_cast<std::uint64_t>(element_bytes(dtype));
  std::vector<StoragePiece> dense;
  std::int64_t filled = 0;
  for (StoragePiece& piece : pieces) {
    filled += piece.tensor == StoragePiece::kZeros
                  ? static_cast<std::int64_t>(piece.zero_bytes / width)
                  : piece.chunk.numel();
    dense.push_back(std::move(piece));
  }
  TESSERA_CHECK(filled <= numel);
  if (filled < numel) {
    StoragePiece zeros;
    zeros.zero_bytes = static_cast<std::uint64_t>(numel - filled) * width;
    dense.push_back(std::move(zeros));
  }
  return Value::tensor(add({dtype, Shape{numel}}, std::move(dense)));
}

Value FileBuilder::float_scalar(double number) {
  const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(number));
  StoragePiece piece;
  piece.tensor = StoragePiece::kBytes;
  for (int i = 0; i < 4; ++i) piece.bytes.push_back(static_cast<char>((bits >> (8 * i)) & 0xff));
  return Value::tensor(add({DType::kFloat32, Shape{}}, {std::move(piece)}));
}

ArchiveFile FileBuilder::finish(std::string path, Value root) {
  const std::size_t slash = path.rfind('/');
  std::string stem = slash == std::string::npos ? path : path.substr(slash + 1);
  if (stem.ends_with(".pt")) stem.resize(stem.size() - 3);
  file_.path = std::move(path);
  file_.prefix = std::move(stem);
  file_.root = std::move(root);
  return std::move(file_);
}

}  // namespace tessera::deepspeed

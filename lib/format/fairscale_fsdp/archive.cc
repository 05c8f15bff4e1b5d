#include "lib/format/fairscale_fsdp/archive.h"

#include <fmt/format.h>
#include <tessera/base/error.h>

namespace tessera::fairscale {
namespace {

StoragePiece piece_of(std::uint32_t tensor, Chunk chunk) {
  StoragePiece piece;
  piece.tensor = tensor;
  piece.chunk = std::move(chunk);
  return piece;
}

}  // namespace

ArchiveDraft::ArchiveDraft(const Manifest& source, std::string path)
    : source_(source), remap_([this](std::uint32_t index) { return whole(index).tensor_index(); }) {
  file_.prefix = path.substr(0, path.rfind('.'));
  file_.path = std::move(path);
}

Value ArchiveDraft::add(const TensorSpec& spec, std::vector<StoragePiece> pieces) {
  ArchiveWriteTensor tensor;
  tensor.spec = spec;
  tensor.storage = static_cast<std::uint32_t>(file_.storages.size());
  file_.storages.push_back(std::move(pieces));
  file_.tensors.push_back(tensor);
  return Value::tensor(static_cast<std::uint32_t>(file_.tensors.size() - 1));
}

Value ArchiveDraft::whole(std::uint32_t index) {
  if (const auto known = known_.find(index); known != known_.end())
    return Value::tensor(known->second);
  const Value value = reshaped(index, source_.tensors.at(index).spec.shape);
  known_.emplace(index, value.tensor_index());
  return value;
}

Value ArchiveDraft::reshaped(std::uint32_t index, const Shape& shape) {
  const StoredTensor& tensor = source_.tensors.at(index);
  if (tensor.quant >= 0 || is_sub_byte(tensor.spec.dtype))
    in_tensor(tensor.name, [&] {
      fail(Code::kUnsupported,
           fmt::format("fairscale-fsdp does not take {} tensors", torch_name(tensor.spec.dtype)),
           "leave it out with --exclude");
    });
  return add({tensor.spec.dtype, shape},
             {piece_of(index, Chunk::whole_of(Box::whole(tensor.spec.shape)))});
}

ArchiveFile ArchiveDraft::finish(Value root) {
  file_.root = std::move(root);
  return std::move(file_);
}

}  // namespace tessera::fairscale

#include "lib/format/torch_dcp/item_value.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/encoding/torch_archive.h>

#include <utility>

namespace tessera::dcp {
namespace {

constexpr std::uint64_t kEndRecordBytes = 22;

/// The last bytes of every zip that torch writes: an end record without a comment.
bool ends_like_zip(const ByteWindow& window) {
  if (window.length < kEndRecordBytes) return false;
  const Bytes end = window.read(window.length - kEndRecordBytes, 4);
  return as_text(end) == "PK\x05\x06";
}

DecodedValue raw_bytes(const OpenItem& open, std::uint64_t memory_limit_bytes) {
  if (ends_like_zip(open.window)) fail(Code::kCorrupt, "the head of its archive is damaged");
  if (open.window.length > memory_limit_bytes) {
    fail(Code::kResourceExhausted,
         fmt::format("a value of {} raw bytes is beyond the memory limit", open.window.length),
         "raise --mem-limit");
  }
  DecodedValue made;
  made.raw = true;
  const Bytes bytes = open.window.read(0, open.window.length);
  made.value = Value::bytes(std::string(as_text(bytes)), Value::Kind::kBytesIo);
  return made;
}

/// The planner pickles io.BytesIO as an object with the state (bytes, position, None).
Value simplified(Value value) {
  if (value.kind() != Value::Kind::kOpaque) return value;
  const OpaqueObject& object = value.as_opaque();
  const bool bytes_io = (object.module == "_io" || object.module == "io") &&
                        object.name == "BytesIO" && object.has_state;
  if (!bytes_io || object.state.kind() != Value::Kind::kTuple) return value;
  const ValueList& state = object.state.as_list();
  if (state.empty() || state[0].kind() != Value::Kind::kBytes) return value;
  return Value::bytes(state[0].as_string(), Value::Kind::kBytesIo);
}

}  // namespace

DecodedValue decode_value(const Manifest& manifest, const Item& item, const OpenItem& open,
                          const ReadOptions& options) {
  if (!looks_like_torch_archive(open.window)) return raw_bytes(open, options.memory_limit_bytes);
  ArchiveOptions how;
  how.collect_denied = options.list_globals;
  how.allow_opaque_root = true;
  how.pickle_limit_bytes = options.pickle_limit_bytes;
  TorchArchive archive = open_torch_archive(open.window, how);
  if (!archive.tensors.empty()) locate_storages(open.window, archive);
  DecodedValue made;
  made.value = simplified(std::move(archive.root));
  made.globals = std::move(archive.globals);
  for (const ArchiveTensor& tensor : archive.tensors) {
    EmbeddedTensor embedded;
    embedded.spec = {tensor.dtype, tensor.shape};
    embedded.is_parameter = tensor.is_parameter;
    embedded.requires_grad = tensor.requires_grad;
    embedded.chunk = locate_tensor(manifest, item, open, archive, tensor);
    made.tensors.push_back(std::move(embedded));
  }
  return made;
}

std::uint32_t add_embedded(Manifest& manifest, SideTables& tables, const std::string& name,
                           EmbeddedTensor embedded) {
  StoredTensor tensor;
  tensor.name = name;
  tensor.spec = embedded.spec;
  tensor.embedded = true;
  tensor.is_parameter = embedded.is_parameter;
  tensor.requires_grad = embedded.requires_grad;
  tensor.first_chunk = manifest.chunks.size();
  tensor.chunk_count = 1;
  if (embedded.chunk.quant) {
    tensor.quant = static_cast<std::int32_t>(manifest.quant.size());
    manifest.quant.push_back(*embedded.chunk.quant);
  }
  manifest.chunks.add(Chunk::whole_of(Box::whole(tensor.spec.shape)),
                      tables.join_embedded(std::move(embedded.chunk)));
  manifest.tensors.push_back(std::move(tensor));
  return static_cast<std::uint32_t>(manifest.tensors.size() - 1);
}

std::uint32_t add_embedded(Manifest& manifest, SideTables& tables, const std::string& name,
                           const TensorSpec& spec, std::vector<EmbeddedPiece> pieces) {
  StoredTensor tensor;
  tensor.name = name;
  tensor.spec = spec;
  tensor.embedded = true;
  tensor.first_chunk = manifest.chunks.size();
  tensor.chunk_count = static_cast<std::uint32_t>(pieces.size());
  for (EmbeddedPiece& piece : pieces)
    manifest.chunks.add(piece.chunk, tables.join_embedded(std::move(piece.located)));
  manifest.tensors.push_back(std::move(tensor));
  return static_cast<std::uint32_t>(manifest.tensors.size() - 1);
}

}  // namespace tessera::dcp

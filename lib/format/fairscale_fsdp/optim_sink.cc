#include "lib/format/fairscale_fsdp/optim_sink.h"

#include <tessera/tensor/cast.h>

#include <span>

namespace tessera::fairscale {

void OptimSink::begin(const std::string& fqn) {
  at_ = below(below(root_, "state"), fqn);
  inside_.clear();
}

std::uint32_t OptimSink::add(const Path& path, const TensorSpec& spec,
                             std::span<const ArchivePiece> pieces) {
  const std::uint32_t index = checkpoint_.builder.add_tensor(path, spec, pieces);
  if (!as_values_) return index;
  checkpoint_.builder.manifest().state.entries.pop_back();
  StoredTensor& tensor = checkpoint_.builder.tensor(index);
  tensor.name = dotted(at_);
  tensor.embedded = true;
  return index;
}

void OptimSink::tensor(const std::string& leaf, const TensorSpec& spec,
                       std::span<const ArchivePiece> pieces, bool sharded) {
  const std::uint32_t index = add(below(at_, leaf), spec, pieces);
  checkpoint_.builder.tensor(index).always_sharded = sharded && spec.shape.rank() > 0;
  if (as_values_) inside_.emplace_back(Value::string(leaf), Value::tensor(index));
}

void OptimSink::whole(const std::string& leaf, TensorRef ref) {
  const ArchiveTensor& stored = checkpoint_.bytes.tensor(ref);
  const ArchivePiece piece{Chunk::whole_of(Box::whole(stored.shape)), ref.file, ref.tensor, 0};
  tensor(leaf, {stored.dtype, stored.shape}, {&piece, 1}, false);
}

void OptimSink::list(const std::string& leaf, const std::vector<TensorRef>& refs) {
  ValueList items;
  Path path = below(at_, leaf);
  path.push_back(index_item(0));
  for (std::size_t i = 0; i < refs.size(); ++i) {
    const ArchiveTensor& stored = checkpoint_.bytes.tensor(refs[i]);
    const ArchivePiece piece{Chunk::whole_of(Box::whole(stored.shape)), refs[i].file,
                             refs[i].tensor, 0};
    path.back().index = static_cast<std::int64_t>(i);
    items.push_back(Value::tensor(add(path, {stored.dtype, stored.shape}, {&piece, 1})));
  }
  if (as_values_) inside_.emplace_back(Value::string(leaf), Value::list(std::move(items)));
}

void OptimSink::value(const std::string& leaf, std::uint32_t file, const Value& value) {
  if (as_values_)
    inside_.emplace_back(Value::string(leaf), embed_all(checkpoint_, dotted(at_), file, value));
  else
    checkpoint_.builder.add_state(file, value, below(at_, leaf));
}

void OptimSink::scalar(const std::string& leaf, DType dtype, double number) {
  Manifest& manifest = checkpoint_.builder.manifest();
  Bytes bytes(static_cast<std::size_t>(element_bytes(dtype)));
  cast_elements(DType::kFloat64, std::as_bytes(std::span(&number, 1)), dtype, bytes);
  Source source;
  source.kind = Source::Kind::kInline;
  source.length = bytes.size();
  source.side = static_cast<std::uint32_t>(manifest.inline_bytes.size());
  manifest.inline_bytes.push_back(std::move(bytes));
  const Path path = below(at_, leaf);
  StoredTensor tensor;
  tensor.name = dotted(path);
  tensor.spec = {dtype, Shape{}};
  tensor.first_chunk = manifest.chunks.size();
  tensor.chunk_count = 1;
  manifest.chunks.add(Chunk::whole_of(Box::whole(Shape{})), source);
  entry(path, Value::tensor(static_cast<std::uint32_t>(manifest.tensors.size())));
  manifest.tensors.push_back(std::move(tensor));
}

void OptimSink::end() {
  if (as_values_) entry(at_, Value::dict(std::move(inside_)));
  inside_ = {};
}

void OptimSink::group(std::int64_t index, std::uint32_t file, const Value& group,
                      const std::vector<std::string>& members) {
  Path path = below(root_, "param_groups");
  path.push_back(index_item(index));
  for (const auto& [key, option] : group.as_dict()) {
    if (!key.is_string()) continue;
    if (key.as_string() != "params") {
      checkpoint_.builder.add_state(file, option, below(path, key.as_string()));
      continue;
    }
    ValueList names;
    for (const std::string& member : members) names.push_back(Value::string(member));
    entry(below(path, "params"), Value::list(std::move(names)));
  }
}

void OptimSink::entry(const Path& path, Value value) {
  checkpoint_.builder.manifest().state.entries.push_back({dotted(path), path, std::move(value)});
}

}  // namespace tessera::fairscale

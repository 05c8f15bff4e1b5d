#include "lib/format/megatron_torch/rank_writer.h"

#include <fmt/format.h>
#include <tessera/base/error.h>

#include <utility>

namespace tessera::megatron_torch {

Value RankWriter::tensor(std::uint32_t index, RankPart part) {
  const StoredTensor& stored = source_.tensors[index];
  if (is_sub_byte(stored.spec.dtype) || stored.quant >= 0)
    fail(Code::kUnsupported,
         fmt::format("megatron-torch cannot hold a tensor of {}{}", torch_name(stored.spec.dtype),
                     stored.quant >= 0 ? " with quantization parameters" : ""));
  const auto number = static_cast<std::uint32_t>(file_.tensors.size());
  file_.tensors.push_back({{stored.spec.dtype, std::move(part.shape)},
                           number,
                           stored.is_parameter,
                           stored.requires_grad,
                           nullptr});
  file_.storages.push_back(std::move(part.pieces));
  return Value::tensor(number);
}

Value RankWriter::whole(std::uint32_t index) {
  if (const auto known = whole_.find(index); known != whole_.end())
    return Value::tensor(known->second);
  const Value made = tensor(index, cut_.whole(index));
  whole_.emplace(index, made.tensor_index());
  return made;
}

Value RankWriter::value(const Value& value) {
  TensorRemapper remap([this](std::uint32_t index) { return whole(index).tensor_index(); });
  return remap(value);
}

void RankWriter::add(Path path, Value value) {
  std::string name = dotted(path);
  state_.entries.push_back({std::move(name), std::move(path), std::move(value)});
}

ArchiveFile RankWriter::finish(std::string path, std::string prefix) {
  file_.path = std::move(path);
  file_.prefix = std::move(prefix);
  file_.root = state_.entries.empty() ? Value::dict({}) : unflatten(state_);
  return std::move(file_);
}

}  // namespace tessera::megatron_torch

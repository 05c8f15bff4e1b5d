#include "lib/format/deepspeed_zero/state_assembler.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/tensor/cast.h>

#include <algorithm>

#include "lib/format/deepspeed_zero/partition.h"

namespace tessera::deepspeed {
namespace {

constexpr std::string_view kCopyPrefix = "module.";
constexpr std::string_view kClientState = "client_state";

}  // namespace

ArchivePiece whole_piece_of(const ArchiveTensor& tensor, std::uint32_t file, std::uint32_t index) {
  return {Chunk::whole_of(Box::whole(tensor.shape)), file, index, 0};
}

std::unordered_map<std::string, std::uint32_t> module_copies(const Manifest& manifest) {
  std::unordered_map<std::string, std::uint32_t> copies;
  for (std::size_t i = 0; i < manifest.tensors.size(); ++i) {
    const StoredTensor& tensor = manifest.tensors[i];
    if (tensor.embedded && tensor.name.starts_with(kCopyPrefix))
      copies.emplace(tensor.name.substr(kCopyPrefix.size()), static_cast<std::uint32_t>(i));
  }
  return copies;
}

Path StateAssembler::state_path(const std::string& name, std::string_view leaf) const {
  Path path = root_path(model_.naming.optim_root);
  for (const std::string_view key : {kState, std::string_view(name), leaf})
    path.push_back(key_item(key));
  return path;
}

Path StateAssembler::model_path(const std::string& name) const {
  Path path = root_path(model_.naming.model_root);
  path.push_back(key_item(name));
  return path;
}

std::uint32_t StateAssembler::add_model(const std::string& name, const TensorSpec& spec,
                                        std::span<const ArchivePiece> pieces) {
  const std::uint32_t number = builder_.add_tensor(model_path(name), spec, pieces);
  builder_.tensor(number).kind =
      model_.buffers.contains(name) ? TensorKind::kBuffer : TensorKind::kParam;
  return number;
}

std::uint32_t StateAssembler::add_leaf(const std::string& name, std::string_view leaf,
                                       const TensorSpec& spec,
                                       std::span<const ArchivePiece> pieces) {
  return builder_.add_tensor(state_path(name, leaf), spec, pieces);
}

void StateAssembler::add_leaf_value(std::uint32_t file, const std::string& name,
                                    std::string_view leaf, const Value& value) {
  builder_.add_value(file, state_path(name, leaf), value);
}

std::uint32_t StateAssembler::add_whole(const Path& path, std::uint32_t file, std::uint32_t tensor,
                                        bool as_float32) {
  const ArchiveTensor& stored = builder_.archive(file).tensors.at(tensor);
  const ArchivePiece piece = whole_piece_of(stored, file, tensor);
  const std::uint32_t number = builder_.add_tensor(path, {stored.dtype, stored.shape}, {&piece, 1});
  if (as_float32 && stored.dtype != DType::kFloat32) {
    builder_.tensor(number).cast_from = stored.dtype;
    builder_.tensor(number).spec.dtype = DType::kFloat32;
  }
  return number;
}

void StateAssembler::add_module_tensor(const NamedTensor& item) {
  const ArchiveTensor& stored = builder_.archive(model_.file).tensors.at(item.tensor);
  const bool buffer = model_.buffers.contains(item.name);
  const bool cast = buffer && model_.naming.cast_buffers && is_floating(stored.dtype) &&
                    is_castable(stored.dtype);
  Path path = root_path(model_.naming.model_root);
  path.push_back(key_item(item.name));
  const std::uint32_t number = add_whole(path, model_.file, item.tensor, cast);
  if (buffer) builder_.tensor(number).kind = TensorKind::kBuffer;
}

void StateAssembler::add_frozen(const std::string& name, const std::string& holder,
                                const Shape& shape, std::span<const ModelFile> ranks,
                                std::int64_t world_size) {
  const auto fragment_of = [&](const ModelFile& model) {
    const auto found = model.frozen.find(holder);
    if (found != model.frozen.end()) return found->second;
    Status status{Code::kCorrupt,
                  fmt::format("frozen_param_fragments lacks \"{}\"", printable(holder)),
                  {},
                  {}};
    status.context.file = builder_.manifest().files[model.file].path;
    throw Error(std::move(status));
  };
  const ModelFile& first = ranks.empty() ? model_ : ranks.front();
  const DType dtype = builder_.archive(first.file).tensors.at(fragment_of(first)).dtype;
  std::vector<ArchivePiece> pieces;
  if (ranks.empty())
    pieces.push_back({Chunk::whole_of(Box::whole(shape)), model_.file, fragment_of(model_), 0});
  for (const ModelFile& model : ranks) {
    const Slice slice = slice_of(shape.numel(), world_size, model.dp_rank);
    if (slice.begin < slice.end || (shape.numel() == 0 && pieces.empty()))
      pieces.push_back(
          {Chunk{Box::whole(shape), slice.begin, slice.end}, model.file, fragment_of(model), 0});
  }
  add_model(name, {dtype, shape}, pieces);
}

void StateAssembler::add_derived_fp32(std::uint32_t file, const NamedTensor& item) {
  const ArchiveTensor& stored = builder_.archive(file).tensors.at(item.tensor);
  if (!is_castable(stored.dtype) || stored.quant >= 0) return;
  add_whole(state_path(item.name, kFp32Leaf), file, item.tensor, true);
}

void StateAssembler::keep_module_copy(std::uint32_t file, const NamedTensor& item, DType master) {
  const ArchiveTensor& stored = builder_.archive(file).tensors.at(item.tensor);
  const ArchivePiece piece = whole_piece_of(stored, file, item.tensor);
  keep_module_copy(item.name, {stored.dtype, stored.shape}, {&piece, 1}, master);
}

void StateAssembler::keep_module_copy(const std::string& name, const TensorSpec& spec,
                                      std::span<const ArchivePiece> pieces, DType master) {
  if (spec.dtype == master) return;
  const Path path = path_of({std::string(kCopyPrefix) + name});
  const std::uint32_t number = builder_.add_tensor(path, spec, pieces);
  builder_.tensor(number).embedded = true;
  builder_.manifest().state.entries.pop_back();
}

void StateAssembler::add_group(std::uint32_t file, std::size_t index, const Value& options,
                               const std::vector<std::string>& members, const Value& step) {
  ValueList names;
  for (const std::string& member : members) names.push_back(Value::string(member));
  ValueDict group;
  bool placed = false;
  if (options.is_dict()) {
    for (const auto& [key, value] : options.as_dict()) {
      const bool params = key.is_string() && key.as_string() == kParams;
      group.emplace_back(key, params ? Value::list(names) : value);
      placed |= params;
    }
  }
  if (!placed) group.emplace_back(text(kParams), Value::list(names));
  if (!step.is_none()) group.emplace_back(text(kStep), step);
  Path path = root_path(model_.naming.optim_root);
  path.push_back(key_item(kParamGroups));
  path.push_back(index_item(index));
  builder_.add_state(file, Value::dict(std::move(group)), path);
}

void StateAssembler::add_globals(std::uint32_t file, const Value& globals) {
  ValueDict kept;
  for (const auto& entry : globals.as_dict()) {
    const bool named = entry.first.is_string();
    const auto& added = model_.naming.added;
    if (named && std::ranges::find(added, std::string(kGlobalsRoot) + "." +
                                              entry.first.as_string()) != added.end())
      continue;
    kept.push_back(entry);
  }
  if (!kept.empty())
    builder_.add_state(file, Value::dict(std::move(kept)), path_of({kGlobalsRoot}));
}

void StateAssembler::add_other_state() {
  const Path model_root = root_path(model_.naming.model_root);
  if (!model_.module_attributes.is_none() && !model_.module_attributes.holds_tensors())
    builder_.manifest().state.containers.push_back(
        {model_root, Value::Kind::kOrderedDict, model_.module_attributes, 0});
  for (const auto& [name, value] : model_.module_values) {
    Path path = model_root;
    path.push_back(key_item(name));
    builder_.add_value(model_.file, path, value);
  }
  const Value& of_optimizer = model_.naming.optimizer;
  if (!of_optimizer.is_dict() || !of_optimizer.as_dict().empty())
    builder_.add_state(model_.file, of_optimizer, root_path(model_.naming.optim_root));
  ValueDict plain, clashing;
  const Value others = other_state(model_);
  for (const auto& entry : others.as_dict()) {
    const std::string_view key =
        entry.first.is_string() ? std::string_view(entry.first.as_string()) : std::string_view();
    (model_.naming.is_root(key) ? clashing : plain).push_back(entry);
  }
  builder_.add_state(model_.file, Value::dict(std::move(plain)), {});
  if (!clashing.empty())
    builder_.add_state(model_.file, Value::dict(std::move(clashing)), path_of({kClientState}));
}

std::string note_version(Manifest& manifest, const Value& root) {
  const Value* version = root.find(kDsVersion);
  if (!version || !version->is_string()) return {};
  const std::string release = printable(version->as_string());
  manifest.provenance["deepspeed.version"] = release;
  return ", DeepSpeed " + release;
}

}  // namespace tessera::deepspeed

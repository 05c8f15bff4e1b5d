#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/format/torch_rank_files.h>

#include <algorithm>

#include "lib/format/probe_errors.h"
#include "lib/format/torch_rank_files/local_state.h"

namespace tessera::rank_files {
namespace {

constexpr std::uint64_t kMaxRecordBytes = std::uint64_t{64} << 20;

/// The dicts of a full checkpoint that may hold the weights.
std::vector<const Value*> weight_dicts(const Value& root) {
  std::vector<const Value*> out = {&root};
  for (const std::string_view key : {"model", "state_dict", "model_state_dict", "module"})
    if (const Value* found = root.find(key); found && found->is_dict()) out.push_back(found);
  return out;
}

}  // namespace

std::optional<FlatRecord> LocalState::find_record(const Directory& directory,
                                                  const ReadOptions& options) {
  if (const std::string* text = options.own.find(kFlatLayoutFlag);
      text != nullptr && !text->empty())
    return parse_flat_record(as_bytes(std::string_view(*text)));
  if (const auto info = directory.stat(kFlatRecordFile); info && info->type == FileType::kRegular) {
    return in_file(kFlatRecordFile, [&] {
      if (info->size_bytes > kMaxRecordBytes) fail(Code::kCorrupt, "too large for a flat layout");
      Bytes text(info->size_bytes);
      directory.open(kFlatRecordFile)->read_at(0, text);
      return parse_flat_record(text);
    });
  }
  if (state_alone_) return std::nullopt;  // a full state dict does not say what was wrapped
  for (const std::string& file : states_.folder.others)
    if (auto record = record_of_full(directory, file, options.pickle_limit_bytes)) {
      builder_.manifest().notes.push_back(
          {Finding::kNamesFromFile, Severity::kInfo,
           fmt::format("parameters are named by {}", printable(file)), file, ""});
      return record;
    }
  return std::nullopt;
}

/// A full state dict beside the rank files has the names and shapes, in the model's order.
std::optional<FlatRecord> LocalState::record_of_full(const Directory& directory,
                                                     const std::string& file,
                                                     std::uint64_t pickle_limit_bytes) {
  TorchArchive full;
  try {
    const auto open = directory.open(file);
    full = open_torch_archive(ByteWindow::whole(*open), {.pickle_limit_bytes = pickle_limit_bytes});
  } catch (const Error& error) {
    rethrow_unless_of_content(error);
    return std::nullopt;  // something else; the files of this checkpoint do not need it
  }
  for (const Value* weights : weight_dicts(full.root)) {
    if (!weights->is_dict()) continue;
    FlatRecord record;
    for (const auto& [key, value] : weights->as_dict())
      if (key.is_string() && value.is_tensor()) record.order.push_back(key.as_string());
    for (const Unit& unit : units_)
      if (auto found = unit_of_full(unit, full, *weights)) record.units.push_back(*found);
    if (record.units.size() == units_.size()) return record;
  }
  return std::nullopt;
}

/// The weights below the unit's module, but for those of units further down and for buffers.
std::optional<FlatUnit> LocalState::unit_of_full(const Unit& unit, const TorchArchive& full,
                                                 const Value& weights) const {
  const auto module_of = [](const std::string& name) {
    return name.substr(0, name.rfind('.') + 1);
  };
  const std::string module = module_of(unit.name);
  const auto is_below_another = [&](const std::string& name) {
    return std::ranges::any_of(units_, [&](const Unit& other) {
      const std::string deeper = module_of(other.name);
      return deeper.size() > module.size() && name.starts_with(deeper);
    });
  };
  const auto is_buffer = [&](const std::string& name, const ArchiveTensor& tensor) {
    Path path = unit.prefix;
    path.push_back(key_item(name));
    const std::string stored = dotted(path);
    return std::ranges::any_of(states_.entries, [&](const RankEntry& entry) {
      return entry.name == stored && std::ranges::all_of(entry.leaves, [&](const RankLeaf& leaf) {
               return !leaf.sharded && leaf.value.is_tensor() &&
                      bytes_.tensor({leaf.file, leaf.value.tensor_index()}).shape == tensor.shape;
             });
    });
  };
  FlatUnit out;
  out.name = unit.name;
  for (const auto& [key, value] : weights.as_dict()) {
    if (!key.is_string() || !value.is_tensor()) continue;
    const std::string& name = key.as_string();
    const ArchiveTensor& tensor = full.tensors[value.tensor_index()];
    if (name.starts_with(module) && !is_below_another(name) && !is_buffer(name, tensor))
      out.parameters.push_back({name, tensor.shape});
  }
  try {
    fit_unit(out, unit.numel, states_.folder.world_size, unit.dtype);
  } catch (const Error&) {
    return std::nullopt;  // of another model
  }
  return out;
}

}  // namespace tessera::rank_files

#include "lib/format/hf_trainer/reader.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/encoding/json.h>

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "lib/format/findings.h"
#include "lib/format/hf_trainer/files.h"
#include "lib/format/hf_trainer/parameter_order.h"
#include "lib/format/safetensors/delta_refusal.h"
#include "lib/format/safetensors/parts.h"
#include "lib/format/torch_files/archive_manifest.h"
#include "lib/format/torch_save/parts.h"
#include "lib/state/merge_parts.h"
#include "lib/state/parameter_order.h"

namespace tessera::hf_trainer {
namespace {

/// "llama"; "" where no config.json says it.
std::string model_type(const Directory& directory) {
  constexpr const char* kConfig = "config.json";
  constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 20;
  const auto info = directory.stat(kConfig);
  if (!info || info->type != FileType::kRegular || info->size_bytes > kMostBytes) return "";
  Bytes text(info->size_bytes);
  directory.open(kConfig)->read_at(0, text);
  try {
    const Value root = parse_json(text);
    const Value* type = root.find("model_type");
    return type && type->is_string() ? type->as_string() : "";
  } catch (const Error& error) {
    if (error.code() != Code::kCorrupt) throw;
    return "";  // it is an asset: whoever wants it says what is wrong with it
  }
}

/// Puts the weights in the model's order, which the ids of its optimizer follow. False: not known.
bool put_in_model_order(Manifest& weights, std::string_view type) {
  std::vector<StateEntry>& entries = weights.state.entries;
  const auto is_parameter = [&](const StateEntry& entry) {
    if (!entry.value.is_tensor()) return false;
    const DType dtype = weights.tensors[entry.value.tensor_index()].spec.dtype;
    return is_floating(dtype) && entry.name.view().find("running_") == std::string_view::npos;
  };
  std::stable_partition(entries.begin(), entries.end(), is_parameter);
  const auto end = std::ranges::find_if_not(entries, is_parameter);
  const std::span parameters(entries.begin(), end);
  std::vector<std::string_view> names;
  for (const StateEntry& entry : parameters) names.push_back(entry.name.view());
  const auto places = order_of_model(names, type);
  if (!places) return false;
  std::vector<StateEntry> ordered(parameters.size());
  for (std::size_t i = 0; i < ordered.size(); ++i) ordered[(*places)[i]] = std::move(parameters[i]);
  std::ranges::move(ordered, entries.begin());
  return true;
}

/// Those of one model. Of several each has one file, and so has one without an index: what else lies
/// there (`ema_model.safetensors`) is no part of it.
Manifest read_weights(const StateFolder& folder, const std::string& file, const Place& place,
                      const ReadOptions& options) {
  Place at = place;
  if (folder.is_safetensors) {
    if (!folder.more_weights.empty() || !folder.has_index) at.file = file;
    Manifest weights = st::read_manifest(at, options);
    if (st::looks_like_delta(weights)) st::refuse_delta({});
    return weights;
  }
  at.file = file;
  Manifest weights = torch_save::read_manifest(at, options);
  // Its reader names the trainer's files as no shards, which here are read.
  const auto is_read = [&](const std::vector<StateFile>& files, const Note& note) {
    return std::ranges::find(files, note.file, &StateFile::file) != files.end();
  };
  std::erase_if(weights.notes, [&](const Note& note) {
    return is_read(folder.files, note) || is_read(folder.more_weights, note) ||
           note.file == folder.weights;
  });
  return weights;
}

/// Each file is a dict that torch.save wrote; it stands below its key.
Manifest read_files(const StateFolder& folder, const Place& place, const ReadOptions& options) {
  ArchiveManifestBuilder builder(*place.directory, options);
  Findings findings(options.tolerate_damage, builder.manifest().notes);
  for (const auto& [file, key] : folder.files) {
    Status why;
    const auto number = builder.try_open(file, why);
    if (!number) {
      findings.error(Finding::kUnreadableFile, unreadable_text("the " + key, why), file);
      continue;
    }
    in_file(file,
            [&] { builder.add_state(*number, builder.archive(*number).root, {key_item(key)}); });
  }
  return builder.finish("torch-save", "");
}

}  // namespace

Manifest read_manifest(const Place& place, const ReadOptions& options) {
  const auto folder = place.file.empty() ? find_state(*place.directory) : std::nullopt;
  if (!folder)
    fail(Code::kUnsupported,
         "it is no folder of Hugging Face's Trainer: weights of one model beside optimizer.pt",
         "leave out --from");
  std::vector<PartManifest> parts;
  parts.push_back(
      {"", read_weights(*folder, folder->weights, place, options), std::string(kModel)});
  for (const auto& [file, key] : folder->more_weights)
    parts.push_back({"", read_weights(*folder, file, place, options), key});
  std::string written = parts[0].manifest.dialect;
  bool in_order = true;
  for (PartManifest& part : parts)
    in_order = (!folder->is_safetensors ||
                put_in_model_order(part.manifest, model_type(*place.directory))) &&
               in_order;
  parts.push_back({"", read_files(*folder, place, options), ""});
  Manifest whole = merge_parts(std::move(parts));
  whole.format = "hf-trainer";
  whole.dialect =
      fmt::format("Hugging Face Trainer, {} ({}) beside {}",
                  folder->is_adapter ? "an adapter" : "weights", written, folder->files[0].file);
  whole.provenance[std::string(kFileOf) + std::string(kModel)] = folder->weights;
  for (const StateFile& file : folder->files)
    whole.provenance[std::string(kFileOf) + file.key] = file.file;
  if (!in_order) set_order_of_names(whole);
  return whole;
}

}  // namespace tessera::hf_trainer

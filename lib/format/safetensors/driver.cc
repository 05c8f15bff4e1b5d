#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/encoding/safetensors_header.h>
#include <tessera/format/safetensors.h>

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <vector>

#include "lib/format/about_weights.h"
#include "lib/format/own_results.h"
#include "lib/format/safetensors/delta_refusal.h"
#include "lib/format/safetensors/names.h"
#include "lib/format/safetensors/parts.h"
#include "lib/format/safetensors/shard_set.h"

namespace tessera {
namespace {

using Answer = ProbeResult::Answer;

ProbeResult probe_file(const Place& place) {
  if (place.file.ends_with(st::kIndexSuffix))
    return {Answer::kYes, "is the index of safetensors shards"};
  const auto file = place.directory->open(place.file);
  const bool named = place.file.ends_with(st::kSuffix);
  if (looks_like_safetensors(ByteWindow::whole(*file)))
    return {Answer::kYes, "starts with a safetensors header"};
  if (named) return {Answer::kMaybe, "is named .safetensors, but does not start like one"};
  return {};
}

/// With it, files of one folder are pieces of ranks under equal names (torch_checkpointing).
constexpr std::string_view kPiecesOfRanks = "metadata.pkl";

/// Names under which libraries look for a whole model, adapter or optimizer: none is a part of
/// another.
bool has_name_of_a_whole(const std::string& file) {
  constexpr std::array<std::string_view, 7> kWholes = {
      "model.safetensors",        "adapter_model.safetensors",
      "consolidated.safetensors", "diffusion_pytorch_model.safetensors",
      "optimizer.safetensors",    "pytorch_lora_weights.safetensors",
      "optim.safetensors"};
  return std::ranges::find(kWholes, file) != kWholes.end();
}

/// Whether two files hold a tensor of one name without being parts of one set, by their names or by
/// what they say of themselves: weights of two steps, or of two precisions, side by side.
bool are_models_each(const Directory& directory, const std::vector<std::string>& files) {
  if (files.size() < 2) return false;
  if (std::ranges::count_if(files, has_name_of_a_whole) > 1) return true;
  std::set<std::string> names;
  bool twice = false;
  for (const std::string& name : files) {
    if (numbered_shard(name, st::kNaming) || st::shard_rank(name)) return false;
    try {
      const SafetensorsHeader header =
          read_safetensors_header(ByteWindow::whole(*directory.open(name)), true);
      if (st::is_nanotron_part(header) || header.metadata.contains(std::string(st::kShardingInfo)))
        return false;
      for (const SafetensorsTensor& tensor : header.tensors)
        twice |= !names.emplace(tensor.name.view()).second;
    } catch (const Error&) {
      return false;  // the reader says what is wrong with it
    }
  }
  return twice;
}

ProbeResult probe_folder(const Place& place) {
  if (place.directory->stat(kPiecesOfRanks)) return {};
  std::vector<std::string> files;
  std::string index;
  for (const FileInfo& info : place.directory->list()) {
    if (info.type != FileType::kRegular || info.name.starts_with('.')) continue;
    if (info.name.ends_with(st::kSuffix)) files.push_back(info.name);
    if (info.name.ends_with(st::kIndexSuffix)) index = info.name;
  }
  const OwnResults own = index.empty() ? find_own_results(*place.directory) : OwnResults{};
  if (own.files > 0 && files.size() + own.count() > 2) return {};
  if (!index.empty())
    return {Answer::kYes, fmt::format("has {} and {} .safetensors files", index, files.size()),
            kAboutWeights, ProbeResult::Knows::kNames};
  if (files.empty() || are_models_each(*place.directory, files)) return {};
  return {Answer::kYes,
          fmt::format("has {} .safetensors file{}", files.size(), files.size() == 1 ? "" : "s"),
          kAboutWeights, ProbeResult::Knows::kNames};
}

class SafetensorsDriver : public FormatDriver {
 public:
  std::string_view id() const override { return "safetensors"; }
  Capabilities capabilities() const override {
    static constexpr std::string_view kSuffixes[] = {st::kSuffix};
    static constexpr std::string_view kFolderFiles[] = {"*.index.json"};
    static constexpr const FormatOption* kReads[] = {&kBaseFlag};
    static constexpr const FormatOption* kWrites[] = {&kWorldSizeFlag, &kMeshFlag,
                                                      &kMaxShardSizeFlag, &kAsIndexFlag};
    return {.keeps_containers = true,
            .is_weights = true,
            .is_loose_files = true,
            .suffixes = kSuffixes,
            .folder_files = kFolderFiles,
            .result_suffix = st::kSuffix,
            .preset = "hf",
            .reads_with = kReads,
            .writes_with = kWrites};
  }

  ProbeResult probe(const Place& place) const override {
    return place.file.empty() ? probe_folder(place) : probe_file(place);
  }
  Manifest manifest(const Place& place, const ReadOptions& options) const override {
    Manifest manifest = st::read_manifest(place, options);
    if (options.own.get(kDeltaBlobs)) return manifest;
    const bool has_index = place.file.empty() || place.file.ends_with(st::kIndexSuffix);
    const DeltaIndex index =
        has_index ? read_delta_index(*place.directory, place.file, options.guess_index)
                  : DeltaIndex();
    if (!index.encoding.empty() || st::looks_like_delta(manifest)) st::refuse_delta(index);
    return manifest;
  }
  /// The header gives every offset: nothing is pending.
  void locate(const Place&, Manifest&, std::span<const std::uint32_t>,
              const ReadOptions&) const override {}

  OutputPlan output_plan(const Manifest& source, const TargetRequest& request) const override {
    return st::plan_output(source, request);
  }
};

}  // namespace

const FormatDriver& safetensors_driver() {
  static const SafetensorsDriver driver;
  return driver;
}

}  // namespace tessera

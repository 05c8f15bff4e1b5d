#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/encoding/torch_archive.h>
#include <tessera/format/fairscale_fsdp.h>

#include <algorithm>

#include "lib/format/fairscale_fsdp/parts.h"
#include "lib/format/fairscale_fsdp/reader.h"
#include "lib/format/fairscale_fsdp/select.h"
#include "lib/format/fairscale_fsdp/writer.h"
#include "lib/format/torch_files/archive_driver.h"

namespace tessera {
namespace {

using Answer = ProbeResult::Answer;

/// A file alone is a checkpoint when one process wrote it: it holds every element.
bool holds_everything(const Place& place) {
  const auto file = place.directory->open(place.file);
  ArchiveOptions options;
  options.collect_denied = options.allow_opaque_root = true;
  options.pickle_limit_bytes = place.pickle_limit_bytes;
  const TorchArchive archive = open_torch_archive(ByteWindow::whole(*file), options);
  const Value* found = fairscale::find_metadata(archive.root);
  if (!found) return false;
  const fairscale::RankMetadata metadata = fairscale::parse_metadata(*found);
  fairscale::RankParts parts;
  fairscale::find_parts(archive.root, 0, fairscale::weight_keys(metadata), parts);
  if (!parts.weights) return false;
  for (const fairscale::Wrapper& wrapper : metadata.wrappers)
    for (const fairscale::Backing& backing : wrapper.backings)
      for (const auto& [key, value] : parts.weights.value->as_dict())
        if (key.is_string() && value.is_tensor() &&
            fairscale::clean_path(key.as_string()) ==
                fairscale::joined(wrapper.path, backing.name) &&
            archive.tensors[value.tensor_index()].shape.numel() != backing.numel)
          return false;
  return true;
}

/// How many files the set of several has that the file at `place` belongs to; 0: to none.
std::size_t files_of_set(const Place& place) {
  if (fairscale::archive_names(*place.directory).size() < 2)
    return 0;                                     // alone: nothing to unpickle
  if (!fairscale::choose_files(place)) return 0;  // cheaper than all files: one's pickle
  Place folder = place;
  folder.file.clear();
  const auto chosen = fairscale::choose_files(folder);
  if (!chosen) return 0;
  std::size_t files = 0;
  bool is_member = false;
  for (const auto& names : chosen->ranks) {
    files += names.size();
    is_member |= std::ranges::find(names, place.file) != names.end();
  }
  return is_member ? files : 0;
}

class FairscaleDriver : public ArchiveDriver {
 public:
  std::string_view id() const override { return "fairscale-fsdp"; }
  Capabilities capabilities() const override {
    static constexpr const FormatOption* kWrites[] = {&kWorldSizeFlag, &kMeshFlag};
    return {.many_ranks = true,
            .keeps_opaque = true,
            .needs_steps = true,
            .groups_optimizers = true,
            .names_optimizers = true,
            .writes_with = kWrites};
  }

  ProbeResult probe(const Place& place) const override {
    if (place.file.empty()) return probe_folder(place);
    if (!fairscale::choose_files(place)) return {};
    if (holds_everything(place))
      return {Answer::kYes, "holds FairScale's metadata and all of every parameter"};
    return {};  // one rank's file alone: a torch.save file
  }
  Manifest manifest(const Place& place, const ReadOptions& options) const override {
    return fairscale::read_manifest(place, options);
  }
  OutputPlan output_plan(const Manifest& source, const TargetRequest& request) const override {
    return fairscale::plan_output(source, request);
  }
  bool is_one_of_several(const Place& place) const override { return files_of_set(place) > 1; }

 private:
  static ProbeResult probe_folder(const Place& place) {
    try {
      const auto chosen = fairscale::choose_files(place);
      if (!chosen) return {};
      const auto files =
          std::ranges::count_if(chosen->ranks, [](const auto& names) { return !names.empty(); });
      return {Answer::kYes,
              fmt::format("{} rank file{} with FairScale's metadata", files, files == 1 ? "" : "s"),
              kAboutRankFiles};
    } catch (const Error& error) {
      if (error.code() != Code::kUnsupported) throw;
      return {Answer::kYes, error.status().message, kAboutRankFiles};  // reading says more
    }
  }
};

}  // namespace

const FormatDriver& fairscale_fsdp_driver() {
  static const FairscaleDriver driver;
  return driver;
}

}  // namespace tessera

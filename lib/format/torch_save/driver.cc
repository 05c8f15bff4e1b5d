#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/encoding/torch_archive.h>
#include <tessera/format/torch_save.h>

#include "lib/format/about_weights.h"
#include "lib/format/torch_files/archive_driver.h"
#include "lib/format/torch_save/files.h"
#include "lib/format/torch_save/parts.h"
#include "lib/format/torch_save/shards.h"

namespace tessera {
namespace {

using Answer = ProbeResult::Answer;

ProbeResult probe_folder(const Place& place) {
  const Directory& directory = *place.directory;
  if (const auto sign = torch_save::sign_of_shards(place))
    return {Answer::kYes, "has " + *sign + ", shards of torch.save's", kAboutWeights,
            ProbeResult::Knows::kNames};
  if (const auto parts = torch_save::find_meta_parts(directory); !parts.empty())
    return {Answer::kYes,
            fmt::format("has {} and {} more, parts of one model", parts[0], parts.size() - 1)};
  std::string names;
  for (const torch_save::PartFile& part : torch_save::find_parts(directory)) {
    if (!looks_like_torch_archive(ByteWindow::whole(*directory.open(part.file)))) return {};
    names += (names.empty() ? "" : " and ") + part.file;
  }
  if (names.empty()) return {};
  return {Answer::kYes, "has " + names + ", parts of one state"};
}

ProbeResult probe_file(const Place& place) {
  if (torch_save::sign_of_shards(place))
    return {Answer::kYes, "is the index of shards of torch.save's"};
  const auto file = place.directory->open(place.file);
  if (looks_like_torch_archive(ByteWindow::whole(*file)))
    return {Answer::kYes, "starts like a file of torch.save"};
  if (torch_save::has_torch_suffix(place.file))
    return {Answer::kMaybe, "is named like a file of torch.save, but does not start like one"};
  return {};
}

class TorchSaveDriver : public ArchiveDriver {
 public:
  std::string_view id() const override { return "torch-save"; }
  Capabilities capabilities() const override {
    static constexpr std::string_view kFolderFiles[] = {"*.index.json"};
    static constexpr const FormatOption* kWrites[] = {&kWorldSizeFlag, &kMeshFlag};
    return {.keeps_opaque = true,
            .keeps_containers = true,
            .is_container = true,
            .is_weights = true,
            .is_loose_files = true,
            .suffixes = torch_save::kLoneSuffixes,
            .folder_files = kFolderFiles,
            .result_suffix = torch_save::kLoneSuffixes[0],
            .more_result_suffixes = std::span(torch_save::kLoneSuffixes).subspan(1),
            .writes_with = kWrites};
  }

  ProbeResult probe(const Place& place) const override {
    return place.file.empty() ? probe_folder(place) : probe_file(place);
  }
  Manifest manifest(const Place& place, const ReadOptions& options) const override {
    return torch_save::read_manifest(place, options);
  }
  OutputPlan output_plan(const Manifest& source, const TargetRequest& request) const override {
    return torch_save::plan_output(source, request);
  }
};

}  // namespace

const FormatDriver& torch_save_driver() {
  static const TorchSaveDriver driver;
  return driver;
}

}  // namespace tessera

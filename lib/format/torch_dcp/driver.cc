#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/format/torch_dcp.h>

#include "lib/format/torch_dcp/names.h"
#include "lib/format/torch_dcp/output.h"
#include "lib/format/torch_dcp/reader.h"

namespace tessera {
namespace {

class TorchDcpDriver final : public FormatDriver {
 public:
  std::string_view id() const override { return "torch-dcp"; }

  Capabilities capabilities() const override {
    Capabilities made;
    made.takes_parts = true;
    made.many_ranks = true;
    made.keeps_opaque = true;
    made.loses_dict_kinds = true;
    made.lists_contents = true;
    made.joins_folders = true;
    static constexpr std::string_view kFolderFiles[] = {dcp::kMetadataFile, "*.distcp",
                                                        "__*.metadata"};
    made.folder_files = kFolderFiles;
    static constexpr const FormatOption* kWrites[] = {&kWorldSizeFlag, &kMeshFlag, &kPlacementsFlag,
                                                      &kReplicateFlag};
    made.writes_with = kWrites;
    return made;
  }

  ProbeResult probe(const Place& place) const override {
    using Answer = ProbeResult::Answer;
    if (!place.file.empty()) return {};
    std::int64_t data_files = 0;
    std::size_t rank_metadata = 0;
    bool has_metadata = false;
    for (const FileInfo& info : place.directory->list()) {
      if (info.name == dcp::kMetadataFile) has_metadata = true;
      if (info.name.ends_with(dcp::kDataSuffix)) ++data_files;
      if (dcp::rank_of_metadata_file(info.name)) ++rank_metadata;
    }
    // Formats on top of it keep more files beside these.
    if (has_metadata)
      return {Answer::kYes,
              fmt::format("has .metadata and {}", with_noun(data_files, ".distcp file")),
              dcp::kMetadataFile, ProbeResult::Knows::kNames};
    if (rank_metadata > 0 && data_files > 0) {
      return {Answer::kYes, fmt::format("has metadata of {} ranks and {} .distcp files",
                                        rank_metadata, data_files)};
    }
    if (data_files > 0) {
      return {Answer::kMaybe, fmt::format("has {} but no .metadata: an interrupted save",
                                          with_noun(data_files, ".distcp file"))};
    }
    return {};
  }

  Manifest manifest(const Place& place, const ReadOptions& options) const override {
    return dcp::read_manifest(place, options);
  }

  void locate(const Place& place, Manifest& manifest, std::span<const std::uint32_t> tensors,
              const ReadOptions& options) const override {
    dcp::locate_chunks(place, manifest, tensors, options);
  }

  OutputPlan output_plan(const Manifest& source, const TargetRequest& request) const override {
    return dcp::make_output_plan(source, request);
  }
};

}  // namespace

const FormatDriver& torch_dcp_driver() {
  static const TorchDcpDriver driver;
  return driver;
}

}  // namespace tessera

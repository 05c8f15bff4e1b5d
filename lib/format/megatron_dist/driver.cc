#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/format/megatron_dist.h>
#include <tessera/format/megatron_torch.h>

#include "lib/format/megatron_dist/config.h"
#include "lib/format/megatron_dist/parts.h"
#include "lib/format/torch_dcp/names.h"
#include "lib/format/torch_dcp/reader.h"

namespace tessera {
namespace {

using megatron_dist::read_config;

class MegatronDistDriver final : public FormatDriver {
 public:
  std::string_view id() const override { return "megatron-dist"; }

  Capabilities capabilities() const override {
    Capabilities made;
    made.many_ranks = true;
    made.keeps_opaque = true;
    made.joins_value_dicts = true;
    made.has_model_chunks = true;
    made.megatron = MegatronForm::kDist;
    made.lists_contents = true;
    made.has_sum_list = true;
    made.pointer = kTracker;
    static constexpr const FormatOption* kWrites[] = {&kMeshFlag, &kPlacementsFlag,
                                                      &kReplicateFlag};
    made.writes_with = kWrites;
    return made;
  }

  ProbeResult probe(const Place& place) const override {
    using Answer = ProbeResult::Answer;
    if (!place.file.empty()) return {};
    const Directory& directory = *place.directory;
    if (const auto config = read_config(directory))
      return {Answer::kYes, fmt::format("metadata.json names the backend {}", config->backend),
              dcp::kMetadataFile};
    if (directory.stat(megatron_dist::kCommonFile) && directory.stat(dcp::kMetadataFile))
      return {Answer::kYes, "has .metadata and common.pt, but no metadata.json",
              dcp::kMetadataFile};
    return {};
  }

  Manifest manifest(const Place& place, const ReadOptions& options) const override {
    return megatron_dist::read_manifest(place, options);
  }

  void locate(const Place& place, Manifest& manifest, std::span<const std::uint32_t> tensors,
              const ReadOptions& options) const override {
    dcp::locate_chunks(place, manifest, tensors, options);
  }

  OutputPlan output_plan(const Manifest& source, const TargetRequest& request) const override {
    return megatron_dist::plan_output(source, request);
  }
};

}  // namespace

const FormatDriver& megatron_dist_driver() {
  static const MegatronDistDriver driver;
  return driver;
}

}  // namespace tessera

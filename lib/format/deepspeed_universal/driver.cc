#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/format/deepspeed_universal.h>
#include <tessera/format/deepspeed_zero.h>

#include "lib/format/deepspeed_universal/parts.h"
#include "lib/format/deepspeed_zero/files.h"
#include "lib/format/torch_files/archive_driver.h"

namespace tessera {
namespace {

using Answer = ProbeResult::Answer;

class DeepspeedUniversalDriver : public ArchiveDriver {
 public:
  std::string_view id() const override { return deepspeed::kUniversalFormat; }
  Capabilities capabilities() const override {
    static constexpr const FormatOption* kWrites[] = {&kWorldSizeFlag, &kMeshFlag, &kZeroStageFlag};
    return {.keeps_opaque = true,
            .needs_steps = true,
            .groups_optimizers = true,
            .names_optimizers = true,
            .pointer = {"latest_universal", ""},
            .writes_with = kWrites};
  }

  ProbeResult probe(const Place& place) const override {
    const deepspeed::Folder folder = deepspeed::find_folder(place, true);
    if (folder.empty() || !folder.is_universal) return {};
    return {Answer::kYes, fmt::format("has {} files of model states and a folder \"{}\"",
                                      folder.models.size(), deepspeed::kZeroFolder)};
  }
  Manifest manifest(const Place& place, const ReadOptions& options) const override {
    return deepspeed::read_universal(place, options);
  }
  OutputPlan output_plan(const Manifest& source, const TargetRequest& request) const override {
    return deepspeed::plan_universal(source, request);
  }
  bool is_one_of_several(const Place& place) const override {
    return deepspeed::has_other_files(*place.directory, place.file);
  }
};

}  // namespace

const FormatDriver& deepspeed_universal_driver() {
  static const DeepspeedUniversalDriver driver;
  return driver;
}

}  // namespace tessera

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/format/deepspeed_zero.h>

#include <algorithm>

#include "lib/format/deepspeed_zero/files.h"
#include "lib/format/deepspeed_zero/output.h"
#include "lib/format/deepspeed_zero/reader.h"
#include "lib/format/torch_files/archive_driver.h"

namespace tessera {
namespace {

using Answer = ProbeResult::Answer;

class DeepspeedZeroDriver : public ArchiveDriver {
 public:
  std::string_view id() const override { return deepspeed::kZeroFormat; }
  Capabilities capabilities() const override {
    static constexpr const FormatOption* kWrites[] = {&kWorldSizeFlag, &kMeshFlag, &kZeroStageFlag};
    return {.many_ranks = true,
            .keeps_opaque = true,
            .needs_steps = true,
            .groups_optimizers = true,
            .names_optimizers = true,
            .writes_with = kWrites};
  }

  ProbeResult probe(const Place& place) const override {
    try {
      const deepspeed::Folder folder = deepspeed::find_folder(place, true);
      if (folder.empty() || folder.is_universal) return {};
      return {Answer::kYes,
              fmt::format("has {} files of model states and {} of optimizer states",
                          folder.models.size(), folder.optims.size()),
              kAboutRankFiles};
    } catch (const Error& error) {
      if (error.code() != Code::kCorrupt) throw;
      return {Answer::kMaybe, "has files named like DeepSpeed's, which do not fit together",
              kAboutRankFiles};
    }
  }
  Manifest manifest(const Place& place, const ReadOptions& options) const override {
    return deepspeed::read_zero(place, options);
  }
  OutputPlan output_plan(const Manifest& source, const TargetRequest& request) const override {
    return deepspeed::plan_zero(source, request);
  }
  bool is_one_of_several(const Place& place) const override {
    return deepspeed::has_other_files(*place.directory, place.file);
  }
};

}  // namespace

const FormatDriver& deepspeed_zero_driver() {
  static const DeepspeedZeroDriver driver;
  return driver;
}

namespace deepspeed {

bool has_other_files(const Directory& folder, const std::string& file) {
  if (!is_deepspeed_file_name(file)) return false;
  const auto files = std::ranges::count_if(
      folder.list(), [](const FileInfo& info) { return is_deepspeed_file_name(info.name); });
  return files > 1;
}

}  // namespace deepspeed

bool is_deepspeed_file_name(std::string_view name) {
  return deepspeed::parse_file_name(name).kind != deepspeed::FileName::Kind::kOther;
}

}  // namespace tessera

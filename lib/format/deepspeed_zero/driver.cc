#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/format/deepspeed_zero.h>

#include "lib/format/deepspeed_zero/files.h"
#include "lib/format/deepspeed_zero/output.h"
#include "lib/format/deepspeed_zero/reader.h"
#include "lib/format/torch_files/archive_manifest.h"

namespace tessera {
namespace {

using Answer = ProbeResult::Answer;

class DeepspeedZeroDriver : public FormatDriver {
 public:
  std::string_view id() const override { return deepspeed::kZeroFormat; }
  Capabilities capabilities() const override {
    return {
        .many_ranks = true, .keeps_opaque = true, .needs_steps = true, .groups_optimizers = true};
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
  void locate(const Place& place, Manifest& manifest, std::span<const std::uint32_t> tensors,
              const ReadOptions& options) const override {
    locate_archives(*place.directory, manifest, tensors, options);
  }
  OutputPlan output_plan(const Manifest& source, const TargetRequest& request) const override {
    return deepspeed::plan_zero(source, request);
  }
};

}  // namespace

const FormatDriver& deepspeed_zero_driver() {
  static const DeepspeedZeroDriver driver;
  return driver;
}

bool is_deepspeed_file_name(std::string_view name) {
  return deepspeed::parse_file_name(name).kind != deepspeed::FileName::Kind::kOther;
}

}  // namespace tessera

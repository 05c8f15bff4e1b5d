#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/format/megatron_torch.h>

#include <algorithm>

#include "lib/format/megatron_torch/as_written.h"
#include "lib/format/megatron_torch/parts.h"
#include "lib/format/megatron_torch/rank_grid.h"
#include "lib/format/torch_files/archive_driver.h"

namespace tessera {
namespace {

using namespace megatron_torch;

class MegatronTorchDriver final : public ArchiveDriver {
 public:
  std::string_view id() const override { return "megatron-torch"; }

  Capabilities capabilities() const override {
    Capabilities made;
    made.many_ranks = true;
    made.keeps_opaque = true;
    made.groups_optimizers = true;
    made.names_optimizers = true;
    made.has_model_chunks = true;
    made.megatron = MegatronForm::kRankFiles;
    made.pointer = kTracker;
    static constexpr const FormatOption* kReads[] = {&kAssumePlainFlag};
    static constexpr const FormatOption* kWrites[] = {&kMeshFlag, &kPlacementsFlag, &kReplicateFlag,
                                                      &kAssumePlainFlag, &kMegatronCoreFlag};
    made.reads_with = kReads;
    made.writes_with = kWrites;
    return made;
  }

  ProbeResult probe(const Place& place) const override {
    using Answer = ProbeResult::Answer;
    if (!place.file.empty()) return {};
    const std::vector<RankFolder> folders = find_rank_folders(*place.directory);
    if (folders.empty()) return {};
    const auto with_model = std::ranges::count_if(folders, [&](const RankFolder& folder) {
      return place.directory->stat(folder.name + "/" + std::string(kModelFile)).has_value();
    });
    if (with_model > 0)
      return {Answer::kYes, fmt::format("has {} in {} folders mp_rank_XX", kModelFile, with_model)};
    return {Answer::kMaybe,
            fmt::format("has {} folders mp_rank_XX without {}", folders.size(), kModelFile)};
  }

  Manifest manifest(const Place& place, const ReadOptions& options) const override {
    return read_manifest(place, options);
  }

  OutputPlan output_plan(const Manifest& source, const TargetRequest& request) const override {
    return plan_output(source, request);
  }
  bool is_rank_folder(std::string_view name) const override {
    return is_megatron_rank_folder(name);
  }
  void restate_as_written(Manifest& source, const StateDict& written) const override {
    megatron_torch::restate_as_written(source, written);
  }
};

}  // namespace

const FormatDriver& megatron_torch_driver() {
  static const MegatronTorchDriver driver;
  return driver;
}

bool is_megatron_rank_folder(std::string_view name) { return parse_rank_folder(name).has_value(); }
bool is_megatron_rank_file(std::string_view name) {
  return name == kModelFile || name == kOptimizerFile;
}

}  // namespace tessera

#include <fmt/format.h>
#include <tessera/format/hf_trainer.h>
#include <tessera/format/training_folder.h>

#include "lib/format/about_weights.h"
#include "lib/format/hf_trainer/adopt_state.h"
#include "lib/format/hf_trainer/files.h"
#include "lib/format/hf_trainer/reader.h"
#include "lib/format/torch_files/archive_driver.h"

namespace tessera {
namespace {

constexpr std::string_view kTrainerState = "trainer_state.json";
constexpr std::string_view kSchedule = "scheduler.pt";

class HfTrainerDriver final : public ArchiveDriver, public TrainingFolder {
 public:
  std::string_view id() const override { return "hf-trainer"; }
  Capabilities capabilities() const override {
    static constexpr const FormatOption* kWrites[] = {&kWorldSizeFlag, &kMeshFlag};
    return {
        .writes = false, .keeps_opaque = true, .keeps_containers = true, .writes_with = kWrites};
  }

  ProbeResult probe(const Place& place) const override {
    const auto folder =
        place.file.empty() ? hf_trainer::find_state(*place.directory) : std::nullopt;
    if (!folder) return {};
    return {
        ProbeResult::Answer::kYes,
        fmt::format("has {} and {}, parts of one state", folder->weights, folder->files[0].file),
        kAboutWeights};
  }
  Manifest manifest(const Place& place, const ReadOptions& options) const override {
    return hf_trainer::read_manifest(place, options);
  }
  std::vector<Note> adopt(Manifest& source, TargetRequest& request, OptimKeys keys) const override {
    return hf_trainer::adopt_state(source, request, keys);
  }
  std::span<const std::string_view> sidecars() const override {
    static constexpr std::string_view kFiles[] = {kTrainerState, "training_args.bin",
                                                  "rng_state*.pth", kSchedule, "scaler.pt"};
    return kFiles;
  }
  std::span<const NeededFile> needed_files() const override {
    static constexpr NeededFile kFiles[] = {
        {kTrainerState, "Trainer does not resume"},
        // transformers.Trainer._load_optimizer_and_scheduler: both files, or neither
        {kSchedule, "Trainer resumes with a new optimizer and does not say so"}};
    return kFiles;
  }
  void restate_as_written(Manifest& source, const StateDict& written) const override {
    hf_trainer::restate_as_written(source, written);
  }
  OutputPlan output_plan(const Manifest& source, const TargetRequest& request) const override {
    return hf_trainer::plan_output(source, request);
  }
};

}  // namespace

const FormatDriver& hf_trainer_driver() {
  static const HfTrainerDriver driver;
  return driver;
}

}  // namespace tessera

#pragma once
// TrainingFolder: what a driver is beside a FormatDriver if its format is no container of any state
// but the folder that one framework resumes from: one model with its optimizer, in that framework's
// order, and the framework's own small files.
#include <tessera/format/format_driver.h>
#include <tessera/state/optim_edit.h>

#include <span>
#include <string_view>
#include <vector>

namespace tessera {

class TrainingFolder {
 public:
  virtual ~TrainingFolder() = default;

  /// Before output_plan(): gives the state the keys, groups and order that the framework has.
  /// `request.aliases` follow. `keys`: what was asked for of the optimizer's keys. What has no place
  /// goes to Manifest::left_out. Throws kUnsupported where the state cannot become one.
  virtual std::vector<Note> adopt(Manifest& source, TargetRequest& request,
                                  OptimKeys keys) const = 0;
  /// Globs of the framework's files, which travel from beside a checkpoint of another format.
  virtual std::span<const std::string_view> sidecars() const = 0;
  /// Files that the framework needs to resume. Who writes a folder without one is warned.
  struct NeededFile {
    std::string_view name;
    std::string_view without;  // what the framework does then
  };
  virtual std::span<const NeededFile> needed_files() const = 0;
};

/// nullptr: the format is none. Valid as long as the driver.
inline const TrainingFolder* as_training_folder(const FormatDriver& driver) {
  return dynamic_cast<const TrainingFolder*>(&driver);
}

}  // namespace tessera

// Small files that a framework keeps beside a checkpoint (schedules, random numbers, Lightning's
// meta.pt): a reshard takes them along, so that its result is a checkpoint to the framework, too.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/format/training_folder.h>
#include <tessera/ops/scan.h>

#include <algorithm>
#include <array>

#include "lib/ops/convert/conversion.h"
#include "lib/ops/open/path_resolve.h"
#include "lib/storage/linked_directory.h"

namespace tessera {
namespace {

constexpr std::string_view kLightning = "meta.pt";  // its sign of a sharded checkpoint

/// Weights in another format, or an adapter's, are no small files of the trainer.
bool travels(const Beside& beside) {
  return beside.kind == Beside::Kind::kSidecar && !beside.is_folder && beside.what != "weights" &&
         beside.what != "an adapter";
}

}  // namespace

void Conversion::plan_sidecars() {
  const Selection& selection = options_.selection;
  const bool whole = !selection.only && selection.include.empty() && selection.exclude.empty() &&
                     selection.root.empty() && !request_.hf_preset;
  const bool same_format = driver_->id() == source_.driver->id();
  const TrainingFolder* folder = as_training_folder(*driver_);
  const auto fits = [&](const Beside& beside) {
    if (same_format || folder == nullptr) return same_format;
    return std::ranges::any_of(
        folder->sidecars(), [&](std::string_view glob) { return glob_match(glob, beside.path); });
  };
  for (const Beside& beside : source_.beside) {
    std::string why;
    if (whole && !output_.single_file && travels(beside) && fits(beside) && carry(beside, why))
      continue;
    leave_behind(beside, why);
  }
  if (same_format || folder == nullptr) return;
  for (const TrainingFolder::NeededFile& needed : folder->needed_files()) {
    const auto has = [&](const auto& files, const auto& name) {
      return std::ranges::find(files, needed.name, name) != files.end();
    };
    if (has(sidecars_, &FileInfo::name) || has(output_.files, &OutputFile::path)) continue;
    report_.notes.push_back(
        {Finding::kRelatedLeftBehind, Severity::kWarning,
         fmt::format("the result has no {}: without it {}; copy the one that the run "
                     "wrote at this step",
                     needed.name, needed.without),
         "", ""});
  }
}

/// False: it stays behind; `why`, where that is worth a word.
bool Conversion::carry(const Beside& beside, std::string& why) {
  const auto taken = [&](const auto& files, const auto& name) {
    return std::ranges::find(files, beside.path, name) != files.end();
  };
  if (taken(assets_.copied, &FileInfo::name)) return true;  // --copy-assets has it
  if (taken(output_.files, &OutputFile::path)) return false;
  if (!sidecar_directory_)
    sidecar_directory_ = storage::open_linked_directory(fs_, source_.beside_folder);
  const auto info = sidecar_directory_->stat(beside.path);
  if (!info || info->type != FileType::kRegular) return false;
  const std::array paths = {join_path(source_.beside_folder, beside.path)};
  if (scan_files(fs_, paths).safety == Safety::kDangerous) {
    why = "; it was not taken along, as loading it would run code (ckpt-inspect scan shows what)";
    return false;
  }
  std::erase_if(report_.notes, [&](const Note& note) {
    return note.code == Finding::kAsset && note.file == info->name;  // "not copied"
  });
  sidecars_.push_back(*info);
  report_.assets.push_back(info->name);
  return true;
}

void Conversion::leave_behind(const Beside& beside, const std::string& why) {
  report_.balance.left_behind.push_back({beside.path, beside.what, beside.bytes});
  const bool needed = beside.path == kLightning;
  report_.notes.push_back(
      {Finding::kRelatedLeftBehind, needed || !why.empty() ? Severity::kWarning : Severity::kInfo,
       fmt::format("left behind: {}{}{}", beside.what, why,
                   needed ? "; copy it to the result, without it Lightning does not take that for "
                            "a checkpoint"
                          : ""),
       beside.path, ""});
}

}  // namespace tessera

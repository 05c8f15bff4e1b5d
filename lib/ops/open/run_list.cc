#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/ops/open.h>

#include <algorithm>

#include "lib/ops/open/path_resolve.h"
#include "lib/ops/open/step_name.h"

namespace tessera {
namespace {

std::uint64_t tensor_bytes(const Manifest& manifest) {
  std::uint64_t bytes = 0;
  for (const std::uint32_t tensor : leaf_tensors(manifest))
    bytes += static_cast<std::uint64_t>(manifest.tensors[tensor].spec.size_bytes());
  return bytes;
}

/// Opens headers and metadata; what stops it is the row's problem, never the listing's, but for a
/// selection that matches nothing, which is returned: there is nothing of the row to list.
std::optional<Status> examine(FileSystem& fs, const FoundCheckpoint& found,
                              const OpenOptions& asked, RunRow& row) {
  const Selection& selection = asked.selection;
  try {
    OpenOptions options;
    options.from = std::string(found.driver->id());
    options.selection = selection;
    options.read.tolerate_damage = true;
    options.read.pickle_limit_bytes = asked.read.pickle_limit_bytes;
    const OpenedCheckpoint opened = open_checkpoint(fs, found.path, options);
    row.world_size = opened.manifest.world_size;
    for (const StoredFile& file : opened.manifest.files) row.bytes += file.size_bytes;
    if (!selection.empty()) row.bytes = tensor_bytes(opened.manifest);
    row.complete = true;
    for (const Note& note : opened.manifest.notes) {
      if (note.severity != Severity::kError) continue;
      row.complete = false;
      row.problem = note.message;
      return std::nullopt;
    }
  } catch (const Error& error) {
    if (!selection.empty() && error.code() == Code::kInvalidArgument) return error.status();
    row.complete = false;
    row.is_refused = error.code() == Code::kUnsupported;
    row.problem = error.status().message;
  }
  return std::nullopt;
}

}  // namespace

std::optional<RunListing> list_run(FileSystem& fs, const std::string& path,
                                   const OpenOptions& options) {
  const PathResolver resolver(fs, options.from, options.read.pickle_limit_bytes);
  if (resolver.require(path).type != FileType::kDirectory) return std::nullopt;
  if (!resolver.whole_of_rank_folder(path).empty()) return std::nullopt;
  if (resolver.recognise(path, FileType::kDirectory) || resolver.recognise_parts(path))
    return std::nullopt;
  std::vector<Note> notes;
  const std::vector<FoundCheckpoint> found = resolver.below(path, notes);
  if (found.size() < 2) return std::nullopt;
  RunListing listing;
  listing.path = path;
  listing.notes = std::move(notes);
  std::string latest;
  if (const auto pointer = resolver.pointer_in(path)) {
    listing.pointer = pointer->name;
    listing.pointer_target = pointer->target;
    listing.pointer_stale = pointer->path.empty();
    latest = split_path(pointer->path).second;
  }
  std::optional<Status> unmatched;
  for (const FoundCheckpoint& checkpoint : found) {
    RunRow row;
    row.path = checkpoint.path;
    row.name = checkpoint.name;
    row.step = step_of_run_name(checkpoint.name);
    row.format = checkpoint.driver->id();
    row.is_latest = !latest.empty() && (row.name == latest || row.name.starts_with(latest + "/"));
    if (auto nothing = examine(fs, checkpoint, options, row)) {
      unmatched = std::move(nothing);
      continue;
    }
    listing.rows.push_back(std::move(row));
  }
  if (listing.rows.empty() && unmatched) throw Error(*std::move(unmatched));
  if (unmatched)
    listing.notes.push_back({Finding::kPath, Severity::kInfo,
                             fmt::format("{} more checkpoints have nothing of what was selected",
                                         found.size() - listing.rows.size()),
                             "", ""});
  std::ranges::stable_sort(listing.rows,
                           [](const RunRow& a, const RunRow& b) { return a.step < b.step; });
  return listing;
}

std::optional<Note> stale_pointer(FileSystem& fs, const std::string& path) {
  const PathResolver resolver(fs, "");
  const FileInfo info = resolver.require(path);
  const std::string folder = info.type == FileType::kDirectory ? path : split_path(path).first;
  const auto pointer = resolver.pointer_in(folder);
  if (!pointer || !pointer->path.empty()) return std::nullopt;
  return Note{
      Finding::kBadPointer, Severity::kError,
      fmt::format("the pointer names \"{}\", which is not there", printable(pointer->target)),
      pointer->name, ""};
}

}  // namespace tessera

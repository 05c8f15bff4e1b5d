#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/ops/open.h>
#include <tessera/state/roles.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <set>
#include <tuple>

#include "lib/base/damage.h"
#include "lib/ops/open/path_resolve.h"
#include "lib/ops/open/step_name.h"
#include "lib/storage/linked_directory.h"

namespace tessera {
namespace {

std::uint64_t tensor_bytes(const Manifest& manifest) {
  std::uint64_t bytes = 0;
  for (const std::uint32_t tensor : leaf_tensors(manifest))
    bytes += static_cast<std::uint64_t>(manifest.tensors[tensor].spec.size_bytes());
  return bytes;
}

/// What a run calls its step, at the top of the state or one below: its optimizer's are no such.
std::optional<std::int64_t> stored_step(const StateDict& state) {
  const auto is_step = [](const StateEntry& entry) {
    if (entry.path.empty() || entry.path.size() > 2 || !entry.value.is_int()) return false;
    const std::string_view name = entry.name.view();
    const std::string_view last = name.substr(name.rfind('.') + 1);
    for (const std::string_view word : {"step", "global_step", "global_steps", "iteration", "iter"})
      if (last == word) return true;
    return false;
  };
  if (std::ranges::none_of(state.entries, is_step)) return std::nullopt;
  const Roles roles = find_roles(state);
  for (std::size_t i = 0; i < state.entries.size(); ++i)
    if (roles.entries[i].role == Role::kOther && is_step(state.entries[i]))
      return state.entries[i].value.as_int();
  return std::nullopt;
}

/// What lies on the disk for it, whatever of it is read.
void weigh(FileSystem& fs, const std::string& path, int depth, RunRow& row) {
  constexpr int kDeepest = 8;
  for (const FileInfo& info : storage::open_linked_directory(fs, path)->list()) {
    if (info.type == FileType::kDirectory && depth < kDeepest)
      weigh(fs, join_path(path, info.name), depth + 1, row);
    if (info.type != FileType::kRegular) continue;
    row.disk_bytes += info.size_bytes;
    row.modified_ns = std::max(row.modified_ns, info.mtime_ns);
  }
}

void weigh(FileSystem& fs, const FoundCheckpoint& found, RunRow& row) {
  try {
    const auto info = fs.stat(found.path);
    if (!info) return;
    if (info->type == FileType::kDirectory) return weigh(fs, found.path, 0, row);
    row.disk_bytes = info->size_bytes;
    row.modified_ns = info->mtime_ns;
  } catch (const Error&) {
    // What may not be listed has no size here; why it is not read is its row's problem.
  }
}

/// Opens headers and metadata; what stops it is the row's problem, never the listing's, but for a
/// selection that matches nothing, which is returned: there is nothing of the row to list.
std::optional<Status> examine(FileSystem& fs, const FoundCheckpoint& found,
                              const OpenOptions& asked, RunRow& row) {
  const Selection& selection = asked.selection;
  weigh(fs, found, row);
  try {
    OpenOptions options;
    options.from = std::string(found.driver->id());
    options.selection = selection;
    options.read.tolerate_damage = true;
    options.read.pickle_limit_bytes = asked.read.pickle_limit_bytes;
    const OpenedCheckpoint opened = open_checkpoint(fs, found.path, options);
    row.world_size = opened.manifest.world_size;
    row.stored_step = stored_step(opened.manifest.state);
    for (const StoredFile& file : opened.manifest.files) row.bytes += file.size_bytes;
    if (!selection.empty()) row.bytes = tensor_bytes(opened.manifest);
    row.complete = true;
    for (const Note& note : opened.manifest.notes) {
      if (note.severity != Severity::kError) continue;
      row.complete = false;
      row.problem = in_its_file(note.file, note.message);
      return std::nullopt;
    }
  } catch (const Error& error) {
    if (!selection.empty() && error.code() == Code::kInvalidArgument) return error.status();
    row.complete = false;
    row.is_refused = error.code() == Code::kUnsupported;
    row.problem = in_its_file(error.status().context.file, error.status().message);
  }
  return std::nullopt;
}

RunRow row_of(const FoundCheckpoint& found, const std::string& name) {
  RunRow row;
  row.path = found.path;
  row.name = name;
  row.step = step_of_run_name(name);
  row.format = found.driver->id();
  return row;
}

/// Rows for all that was found.
class Lister {
 public:
  Lister(FileSystem& fs, const OpenOptions& options) : fs_(fs), options_(options) {}

  void add(const FoundCheckpoint& found, RunRow row) {
    if (!seen_.insert(fs_.canonical(found.path)).second) return;
    if (auto nothing = examine(fs_, found, options_, row)) {
      unmatched_ = std::move(nothing);
      ++without_;
      return;
    }
    listing.rows.push_back(std::move(row));
  }

  RunListing finish(const std::string& folder) {
    if (listing.rows.empty() && unmatched_) throw Error(*std::move(unmatched_));
    if (without_ > 0)
      listing.notes.push_back(
          {Finding::kPath, Severity::kInfo,
           fmt::format("{} more checkpoints have nothing of what was selected", without_), "", ""});
    std::ranges::stable_sort(listing.rows,
                             [](const RunRow& a, const RunRow& b) { return a.step < b.step; });
    listing.path = folder;
    listing.free_bytes = fs_.free_bytes(folder);
    listing.listed_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(
                            std::chrono::system_clock::now().time_since_epoch())
                            .count();
    return std::move(listing);
  }

  RunListing listing;

 private:
  FileSystem& fs_;
  const OpenOptions& options_;
  std::set<std::string> seen_;
  std::optional<Status> unmatched_;
  std::size_t without_ = 0;
};

/// What a path among several means: checkpoints, each with the name it is listed by.
std::vector<std::pair<FoundCheckpoint, std::string>> found_at_path(const PathResolver& resolver,
                                                                   const std::string& path,
                                                                   std::vector<Note>& notes) {
  std::vector<std::pair<FoundCheckpoint, std::string>> result;
  if (resolver.require(path).type == FileType::kDirectory &&
      resolver.whole_of_rank_folder(path).empty() &&
      !resolver.recognise(path, FileType::kDirectory) && !resolver.recognise_parts(path)) {
    for (FoundCheckpoint& each : resolver.below(path, notes)) {
      std::string name = join_path(path, each.name);
      result.emplace_back(std::move(each), std::move(name));
    }
    return result;
  }
  std::vector<Note> chosen;  // of each path: a listing has a row for that
  FoundCheckpoint found = resolver.resolve(path, chosen);
  std::string name = found.path;
  if (name.starts_with("./") && !path.starts_with("./")) name = name.substr(2);
  result.emplace_back(std::move(found), std::move(name));
  return result;
}

/// "run" of "run/step-1" and "run/step-2".
std::string common_folder(std::span<const std::string> paths) {
  std::string folder = split_path(paths[0]).first;
  for (const std::string& path : paths)
    if (split_path(path).first != folder) return ".";
  return folder.empty() ? "." : folder;
}

}  // namespace

const RunRow* RunListing::newest_whole() const {
  const RunRow* newest = nullptr;
  const auto rank = [](const RunRow& row) { return std::tuple(row.step, row.modified_ns); };
  for (const RunRow& row : rows)
    if (row.complete && (newest == nullptr || rank(*newest) <= rank(row))) newest = &row;
  return newest;
}

std::optional<RunListing> list_run(FileSystem& fs, const std::string& path,
                                   const OpenOptions& options) {
  const PathResolver resolver(fs, options.from, options.read.pickle_limit_bytes);
  if (resolver.require(path).type != FileType::kDirectory) return std::nullopt;
  if (!resolver.whole_of_rank_folder(path).empty()) return std::nullopt;
  if (resolver.recognise(path, FileType::kDirectory) || resolver.recognise_parts(path))
    return std::nullopt;
  Lister lister(fs, options);
  const std::vector<FoundCheckpoint> found = resolver.below(path, lister.listing.notes);
  if (found.size() < 2) return std::nullopt;
  resolver.refuse_parts_alone(path, found);
  std::string latest;
  if (const auto pointer = resolver.pointer_in(path)) {
    lister.listing.pointer = pointer->name;
    lister.listing.pointer_target = pointer->target;
    lister.listing.pointer_stale = pointer->path.empty();
    latest = split_path(pointer->path).second;
  }
  for (const FoundCheckpoint& checkpoint : found) {
    RunRow row = row_of(checkpoint, checkpoint.name);
    row.is_latest = !latest.empty() && (row.name == latest || row.name.starts_with(latest + "/"));
    lister.add(checkpoint, std::move(row));
  }
  return lister.finish(path);
}

RunListing list_checkpoints(FileSystem& fs, std::span<const std::string> paths,
                            const OpenOptions& options) {
  const PathResolver resolver(fs, options.from, options.read.pickle_limit_bytes);
  Lister lister(fs, options);
  std::optional<Status> refused;
  std::map<std::string, std::string> latest;  // folder -> what its pointer leads to
  std::vector<std::string> bare(paths.begin(), paths.end());
  for (std::string& path : bare)
    while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  for (const std::string& path : bare) {
    try {
      const auto all = found_at_path(resolver, path, lister.listing.notes);
      if (all.empty()) lister.listing.others.push_back(path);
      for (const auto& [found, name] : all) {
        RunRow row = row_of(found, name);
        const std::string folder = split_path(found.path).first;
        const auto [known, is_new] = latest.try_emplace(folder);
        if (const auto pointer = is_new ? resolver.pointer_in(folder) : std::nullopt) {
          known->second = pointer->path.empty() ? "" : fs.canonical(pointer->path);
          lister.listing.pointer = pointer->name;
        }
        row.is_latest = !known->second.empty() && fs.canonical(found.path) == known->second;
        lister.add(found, std::move(row));
      }
    } catch (const Error& error) {
      // What is there and no checkpoint is listed so; what is absent ends the listing.
      if (error.code() == Code::kIo) {
        lister.listing.notes.push_back(
            {Finding::kPath, Severity::kWarning,
             fmt::format("{} was left out: {}", printable(path), error.status().message), "", ""});
        continue;
      }
      if (error.code() != Code::kUnsupported && error.code() != Code::kCorrupt) throw;
      lister.listing.others.push_back(path);
      if (!refused) refused = error.status();
    }
  }
  if (lister.listing.rows.empty() && refused) throw Error(*std::move(refused));
  return lister.finish(common_folder(bare));
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

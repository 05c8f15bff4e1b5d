#include "lib/ops/audit/run.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/parallel.h>
#include <tessera/base/text.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "lib/ops/open/path_resolve.h"
#include "lib/ops/open/step_name.h"

namespace tessera {
namespace {

/// Those below; where the folder is itself a checkpoint, only if they look like a run's.
std::vector<FoundCheckpoint> checkpoints_of(const PathResolver& resolver, const std::string& path,
                                            std::vector<Note>& notes) {
  const FileType type = resolver.require(path).type;
  if (type != FileType::kDirectory || !resolver.whole_of_rank_folder(path).empty())
    return {resolver.resolve(path, notes)};
  std::vector<FoundCheckpoint> found = resolver.below(path, notes);
  const auto itself = resolver.recognise(path, FileType::kDirectory);
  if (itself || resolver.recognise_parts(path)) {
    const auto steps = std::ranges::count_if(
        found, [](const FoundCheckpoint& each) { return step_of_path(each.name).has_value(); });
    if (steps < 2) return {resolver.resolve(path, notes)};
    notes.push_back({Finding::kPath, Severity::kInfo,
                     fmt::format("{} is itself a checkpoint and is not looked at; {} below it are",
                                 printable(path), found.size()),
                     "", ""});
  }
  if (found.empty()) return {resolver.resolve(path, notes)};
  return found;
}

void find_pointer(const PathResolver& resolver, AuditRun& run) {
  const auto pointer = resolver.pointer_in(run.path);
  if (!pointer) return;
  run.has_pointer = true;
  run.pointer = pointer->name;
  run.pointer_target = pointer->target;
  run.pointer_leads = !pointer->path.empty();
  // A file beside it counts, though other verbs follow pointers to folders alone.
  const std::string latest = run.pointer_leads ? split_path(pointer->path).second : pointer->target;
  for (CheckpointFacts& each : run.checkpoints) {
    each.row.is_latest = each.row.name == latest || each.row.name.starts_with(latest + "/");
    run.pointer_leads = run.pointer_leads || each.row.is_latest;
  }
}

/// Two of one step in a series are no one series: only the step's own number is its sign then.
void keep_steps_apart(std::vector<CheckpointFacts>& checkpoints) {
  std::map<std::pair<std::string, std::int64_t>, int> seen;
  for (const CheckpointFacts& each : checkpoints)
    if (each.row.name_step) ++seen[{each.row.series, *each.row.name_step}];
  std::map<std::string, bool> doubled;
  for (const auto& [key, count] : seen)
    if (count > 1) doubled[key.first] = true;
  for (CheckpointFacts& each : checkpoints) {
    AuditedCheckpoint& row = each.row;
    if (!doubled.contains(row.series) || !row.name_step) continue;
    row.series.clear();
    for (std::size_t at = 0; at < row.name.size();) {
      std::size_t end = at;
      while (end < row.name.size() && is_digit(row.name[end])) ++end;
      const std::string digits = row.name.substr(at, end - at);
      const bool is_step =
          !digits.empty() && digits.size() < 19 && std::stoll(digits) == *row.name_step;
      row.series += end == at ? row.name.substr(at, 1) : is_step ? "#" : digits;
      at = std::max(end, at + 1);
    }
  }
}

void put_in_order(AuditRun& run) {
  std::ranges::stable_sort(run.checkpoints, [](const CheckpointFacts& a, const CheckpointFacts& b) {
    if (a.row.series != b.row.series) return natural_less(a.row.series, b.row.series);
    if (a.row.step() != b.row.step()) return a.row.step() < b.row.step();
    return natural_less(a.row.name, b.row.name);
  });
  for (std::size_t i = 0; i < run.checkpoints.size(); ++i) {
    if (i == 0 || run.row(i).series != run.row(i - 1).series) run.series.emplace_back();
    run.series.back().push_back(i);
  }
}

}  // namespace

std::optional<double> AuditedCheckpoint::step() const {
  if (name_step) return static_cast<double>(*name_step);
  return stored_step;
}

std::string step_text(const AuditedCheckpoint& row) {
  const auto step = row.step();
  return step ? fmt::format("step {:g}", *step) : printable(row.name);
}

void open_run(FileSystem& fs, const std::string& path, const AuditOptions& options, AuditRun& run) {
  run.path = path;
  const PathResolver resolver(fs, options.open.from, options.open.read.pickle_limit_bytes);
  const std::vector<FoundCheckpoint> found = checkpoints_of(resolver, path, run.notes);
  run.checkpoints.resize(found.size());
  // Manifests are what memory goes to: as many at once as there are threads.
  AuditOptions each = options;
  each.open.read.threads = each.transfer.threads = 1;
  const bool folder = fs.stat(path)->type == FileType::kDirectory;
  const std::string around = folder ? path : split_path(path).first;
  parallel_for(found.size(), options.transfer.threads, [&](std::size_t i, int) {
    if (options.transfer.cancel) options.transfer.cancel->check();
    run.checkpoints[i] = gather_facts(fs, found[i], around, each, run.names);
  });
  if (folder) find_pointer(resolver, run);
  keep_steps_apart(run.checkpoints);
  put_in_order(run);
}

}  // namespace tessera

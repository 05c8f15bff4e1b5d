// Which checkpoints are sound, and which could go.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include <algorithm>
#include <optional>

#include "lib/ops/audit/run.h"

namespace tessera {
namespace {

constexpr int kMostDepth = 16;

/// Bytes of the regular files below a folder.
std::uint64_t bytes_below(const Directory& directory, const std::string& folder, int depth) {
  std::uint64_t bytes = 0;
  if (depth > kMostDepth) return bytes;
  for (const FileInfo& info : directory.list(folder)) {
    if (info.type == FileType::kRegular) bytes += info.size_bytes;
    if (info.type == FileType::kDirectory)
      bytes += bytes_below(directory, join_path(folder, info.name), depth + 1);
  }
  return bytes;
}

/// ".step_90.tmp-0123": what a save that ended, or one that goes on, has written so far.
void note_leftovers(FileSystem& fs, AuditRun& run) {
  const auto info = fs.stat(run.path);
  if (!info || info->type != FileType::kDirectory) return;
  try {
    const auto directory = fs.open_directory(run.path);
    for (const FileInfo& each : directory->list())
      if (each.type == FileType::kDirectory && each.name.starts_with('.') &&
          each.name.find(".tmp-") != std::string::npos)
        run.add(Finding::kLeftover, Severity::kInfo,
                fmt::format("{} of a save that was interrupted, or still goes on",
                            format_bytes(bytes_below(*directory, each.name, 0))),
                each.name);
  } catch (const Error& error) {
    if (error.code() != Code::kIo && error.code() != Code::kNotFound) throw;
  }
}

class Retainer {
 public:
  Retainer(AuditRun& run, std::uint32_t keep, AuditReport& report)
      : run_(run), keep_(keep), report_(report) {}

  void run(const std::vector<std::size_t>& series) {
    const auto newest = std::find_if(series.rbegin(), series.rend(),
                                     [&](std::size_t i) { return run_.row(i).sound; });
    if (newest == series.rend()) return;  // all there is may be needed
    std::uint32_t kept = 0;
    for (auto at = series.rbegin(); at != series.rend(); ++at) {
      const AuditedCheckpoint& row = run_.row(*at);
      if (row.sound && kept < keep_) {
        ++kept;
        continue;
      }
      // What is newer than the newest sound one may be all that is left of its steps.
      if (row.is_latest || *at > *newest) continue;
      report_.retention.push_back({row.name, row.bytes, reason(row, kept)});
      report_.retention_bytes += row.bytes;
    }
  }

 private:
  static std::string reason(const AuditedCheckpoint& row, std::uint32_t kept) {
    if (!row.complete) return "damaged, and older than a sound one";
    if (!row.same_as.empty()) return "holds what " + printable(row.same_as) + " holds";
    if (!row.sound) return "an error names it, and a newer one is sound";
    return fmt::format("{} newer sound one{} kept", kept, kept == 1 ? " is" : "s are");
  }

  AuditRun& run_;
  std::uint32_t keep_;
  AuditReport& report_;
};

/// The last of the rows that is like that, by step over all series.
template <class Is>
std::string newest(const AuditRun& run, Is&& is) {
  const AuditedCheckpoint* best = nullptr;
  for (const CheckpointFacts& each : run.checkpoints)
    if (is(each.row) && (best == nullptr || best->step() <= each.row.step())) best = &each.row;
  return best ? best->name : std::string();
}

}  // namespace

void check_retention(FileSystem& fs, AuditRun& run, std::uint32_t keep, AuditReport& report) {
  for (CheckpointFacts& each : run.checkpoints) {
    each.row.sound = each.row.complete && !each.holds_errors &&
                     std::ranges::none_of(run.findings, [&](const Note& note) {
                       return note.severity == Severity::kError && note.file == each.row.name;
                     });
  }
  report.newest_whole = newest(run, [](const AuditedCheckpoint& row) { return row.complete; });
  report.newest_sound = newest(run, [](const AuditedCheckpoint& row) { return row.sound; });
  if (!report.newest_whole.empty()) {
    std::string more;
    if (report.newest_sound.empty())
      more = "; every one has an error";
    else if (report.newest_sound != report.newest_whole)
      more = fmt::format("; the newest that no error names is {}", printable(report.newest_sound));
    run.add(Finding::kNewestWhole, Severity::kInfo, "the newest that is whole" + more,
            report.newest_whole);
  }
  for (const std::vector<std::size_t>& series : run.series)
    if (series.size() > 1) Retainer(run, keep, report).run(series);
  if (!report.retention.empty())
    run.add(Finding::kRetention, Severity::kInfo,
            fmt::format("{} of {} checkpoints could go: {}", report.retention.size(),
                        run.checkpoints.size(), format_bytes(report.retention_bytes)));
  note_leftovers(fs, run);
}

}  // namespace tessera

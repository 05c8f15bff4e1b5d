#include <tessera/base/error.h>
#include <tessera/ops/audit.h>

#include <algorithm>

#include "lib/ops/audit/deep.h"
#include "lib/ops/audit/run.h"

namespace tessera {

bool AuditReport::ok() const {
  return std::ranges::none_of(findings,
                              [](const Note& note) { return note.severity == Severity::kError; });
}

namespace {

/// Numbers of a layer for each checkpoint must fit beside what is read.
void require_room(const AuditRun& run, const AuditOptions& options) {
  std::uint64_t tensors = 0;
  for (const CheckpointFacts& each : run.checkpoints) tensors += each.row.tensors;
  constexpr std::uint64_t kBytes = 16;
  if (tensors * kBytes > options.transfer.memory_limit_bytes)
    fail(Code::kResourceExhausted,
         "the numbers of so many tensors and checkpoints do not fit the memory limit",
         "raise --mem-limit, or look at a part with --include");
}

/// Returns what of the content was read, for messages.
std::string read_deep(FileSystem& fs, AuditRun& run, const AuditOptions& options,
                      AuditReport& report) {
  require_room(run, options);
  DeepPlan plan;
  plan.wants = [](const TensorFact&) { return true; };
  DeepReader reader(fs, run, options, plan);
  for (const std::vector<std::size_t>& series : run.series) {
    DeepSeries judged(run, report.layers, reader.share_text());
    for (const std::size_t i : series)
      if (const auto numbers = reader.read(i)) judged.feed(i, *numbers);
    judged.finish();
  }
  report.sampling = reader.sampling();
  return reader.share_text();
}

}  // namespace

AuditReport audit_run(FileSystem& fs, const std::string& path, const AuditOptions& options) {
  AuditReport report;
  AuditRun run;
  open_run(fs, path, options, run);
  const std::string share = options.deep ? read_deep(fs, run, options, report) : "";
  check_wholeness(run);
  check_steps_over_time(run);
  check_optimizers(run);
  check_content(run, share);
  check_retention(fs, run, options.keep, report);
  report.path = path;
  report.pointer = run.pointer;
  report.pointer_target = run.pointer_target;
  report.deep = options.deep;
  for (CheckpointFacts& each : run.checkpoints) report.checkpoints.push_back(std::move(each.row));
  std::ranges::stable_sort(run.findings, {}, [](const Note& note) {
    return std::pair(-static_cast<int>(note.severity), code_text(note.code));
  });
  report.findings = std::move(run.findings);
  report.notes = std::move(run.notes);
  return report;
}

}  // namespace tessera

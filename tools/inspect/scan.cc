// scan: what loading files would execute.
#include <fmt/format.h>

#include "tools/documents/documents.h"
#include "tools/failure.h"
#include "tools/inspect/inspection.h"
#include "tools/inspect/verbs.h"
#include "tools/render/render.h"

namespace tessera::tools {
ScanReport scan_of(Inspection& in, const std::vector<std::string>& paths) {
  const TransferOptions limits = in.transfer();
  ScanOptions options;
  options.memory_limit_bytes = limits.memory_limit_bytes;
  options.threads = limits.threads;
  return scan_files(in.fs, paths, options);
}

/// The worst of a scan as a failure, which follows the printed result.
Status danger_of(const ScanReport& report) {
  for (const ScannedFile& file : report.files)
    if (file.safety == Safety::kDangerous)
      return {Code::kCorrupt,
              fmt::format("unsafe: the file {}", file.findings[0].message),
              {file.path, {}, {}, -1},
              {}};
  return {};
}

Outcome run_scan(Inspection& in) {
  const ScanReport report = scan_of(in, in.a.words);
  Outcome outcome;
  outcome.out =
      in.in_form([&] { return scan_document(report); }, {{"files", "file"}, {"links", "link"}},
                 [&] { return render_scan(report, in.screen); });
  if (report.safety == Safety::kUnknown) outcome.exit = kExitNegative;
  if (report.safety == Safety::kDangerous) {
    outcome.exit = kExitCorrupt;
    outcome.err = in.complaint(danger_of(report));
  }
  return outcome;
}

}  // namespace tessera::tools

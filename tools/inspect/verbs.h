#pragma once
// The verbs of ckpt-inspect, each in the file of its name.
#include <tessera/ops/scan.h>

#include <string>
#include <vector>

#include "tools/inspect/inspection.h"

namespace tessera::tools {

Outcome run_summary(Inspection& in);
Outcome run_ls(Inspection& in);
Outcome run_show(Inspection& in);
Outcome run_stat(Inspection& in);
Outcome run_optim(Inspection& in);
Outcome run_hash(Inspection& in);
Outcome run_verify(Inspection& in);
Outcome run_scan(Inspection& in);
Outcome run_explain(Inspection& in);
Outcome run_report(Inspection& in);
Outcome run_audit(Inspection& in);
Outcome run_trend(Inspection& in);
Outcome run_browse(Inspection& in);
Outcome run_diff(Inspection& in);

/// scan under the limits that the command line sets; `summary --globals` shows it, too.
ScanReport scan_of(Inspection& in, const std::vector<std::string>& paths);
/// The first dangerous file of a scan as the failure that follows the printed result.
Status danger_of(const ScanReport& report);

}  // namespace tessera::tools

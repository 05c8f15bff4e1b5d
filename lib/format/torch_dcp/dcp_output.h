#pragma once
// The writer of torch-dcp: a Manifest and a request to an OutputPlan. No I/O.
#include <tessera/format/format_driver.h>

namespace tessera::dcp {

/// See FormatDriver::output_plan. Files: `__R_0.distcp` for every rank (empty for ranks without
/// items), then `.metadata`.
OutputPlan make_output_plan(const Manifest& source, const TargetRequest& request);

}  // namespace tessera::dcp

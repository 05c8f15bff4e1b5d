#pragma once
// The two halves of the driver: reading (reader.cc) and planning the output (output_plan.cc).
#include <tessera/format/format_driver.h>

namespace tessera::st {

Manifest read_manifest(const Place& place, const ReadOptions& options);
OutputPlan plan_output(const Manifest& source, const TargetRequest& request);

}  // namespace tessera::st

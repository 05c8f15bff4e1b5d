#pragma once
// The parts of the torch-save driver: reading, locating, planning the output.
#include <tessera/format/format_driver.h>

#include <span>

namespace tessera::torch_save {

Manifest read_manifest(const Place& place, const ReadOptions& options);
OutputPlan plan_output(const Manifest& source, const TargetRequest& request);

}  // namespace tessera::torch_save

#pragma once
// The parts of the megatron-torch driver: reading, planning the output.
#include <tessera/format/format_driver.h>

namespace tessera::megatron_torch {

Manifest read_manifest(const Place& place, const ReadOptions& options);
OutputPlan plan_output(const Manifest& source, const TargetRequest& request);

}  // namespace tessera::megatron_torch

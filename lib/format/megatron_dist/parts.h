#pragma once
// The parts of the megatron-dist driver: reading (both backends), planning the output.
#include <tessera/format/format_driver.h>

#include <span>

namespace tessera::megatron_dist {

Manifest read_manifest(const Place& place, const ReadOptions& options);
OutputPlan plan_output(const Manifest& source, const TargetRequest& request);

}  // namespace tessera::megatron_dist

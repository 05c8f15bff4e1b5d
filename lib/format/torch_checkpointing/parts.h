#pragma once
// The parts of the torch-checkpointing driver: reading, with or without metadata.pkl, and planning
// the output.
#include <tessera/format/format_driver.h>

namespace tessera::checkpointing {

Manifest read_manifest(const Place& place, const ReadOptions& options);
OutputPlan plan_output(const Manifest& source, const TargetRequest& request);

/// Keys of Manifest::provenance: what a writer needs to give a source back in its own shape.
inline constexpr std::string_view kVersion = "writer.torch_checkpointing.version";
inline constexpr std::string_view kDeviceType = "writer.torch_checkpointing.device_type";

}  // namespace tessera::checkpointing

#pragma once
// The folder as one state: {"model": ..., "optimizer": ..., "scheduler": ..., "scaler": ...}; of several
// models or optimizers the further ones below "model_1", "optimizer_1", ...
#include <tessera/format/format_driver.h>

namespace tessera::hf_trainer {

/// Findings of the weights' reader, and
///   CK042  a file of the trainer's cannot be read
Manifest read_manifest(const Place& place, const ReadOptions& options);

/// As Trainer lays it out. Throws kUnsupported where the state is no model with an optimizer by id,
/// or has anything else.
OutputPlan plan_output(const Manifest& source, const TargetRequest& request);

}  // namespace tessera::hf_trainer

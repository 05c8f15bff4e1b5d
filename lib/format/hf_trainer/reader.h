#pragma once
// The folder as one state: {"model": ..., "optimizer": ..., "scheduler": ..., "scaler": ...}.
#include <tessera/format/format_driver.h>

namespace tessera::hf_trainer {

/// Findings of the weights' reader, and
///   CK042  a file of the trainer's cannot be read
Manifest read_manifest(const Place& place, const ReadOptions& options);

}  // namespace tessera::hf_trainer

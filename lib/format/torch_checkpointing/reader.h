#pragma once
// The reader of torch-checkpointing: files of items and ranks, with or without metadata.pkl.
#include <tessera/format/format_driver.h>

namespace tessera::checkpointing {

Manifest read_manifest(const Place& place, const ReadOptions& options);

}  // namespace tessera::checkpointing

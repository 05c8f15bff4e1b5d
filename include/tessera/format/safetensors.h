#pragma once
// safetensors: one file, Hugging Face shards with or without an index, and the rank files of
// PyTorch's Hugging Face storage writer. Stateless; thread-safe. docs/formats/safetensors.md has
// the bytes.
#include <tessera/format/format_driver.h>

namespace tessera {

const FormatDriver& safetensors_driver();

}  // namespace tessera

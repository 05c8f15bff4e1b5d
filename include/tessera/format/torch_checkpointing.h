#pragma once
// torch-checkpointing: folders that PyTorch's torch_checkpointing wrote, DCP's announced successor.
// Read only. Stateless; thread-safe. docs/formats/torch-checkpointing.md has the bytes.
#include <tessera/format/format_driver.h>

namespace tessera {

const FormatDriver& torch_checkpointing_driver();

}  // namespace tessera

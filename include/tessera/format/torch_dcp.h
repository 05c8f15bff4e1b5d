#pragma once
// torch-dcp: checkpoints of torch.distributed.checkpoint, PyTorch 1.13 to 2.13, and of writers that
// share its files (OLMo-core). See docs/formats/torch-dcp.md.
#include <tessera/format/format_driver.h>

namespace tessera {

/// The driver; stateless, lives as long as the program.
const FormatDriver& torch_dcp_driver();

}  // namespace tessera

#pragma once
// megatron-torch: Megatron-LM's own checkpoints, one folder per tensor-, pipeline- and
// expert-parallel rank (mp_rank_XX[_YYY][_ZZZ]). See docs/formats/megatron-torch.md.
#include <tessera/format/format_driver.h>

namespace tessera {

/// The driver; stateless, lives as long as the program.
const FormatDriver& megatron_torch_driver();

}  // namespace tessera

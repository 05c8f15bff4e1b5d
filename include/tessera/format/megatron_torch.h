#pragma once
// megatron-torch: Megatron-LM's own checkpoints, one folder per tensor-, pipeline- and
// expert-parallel rank (mp_rank_XX[_YYY][_ZZZ]). See docs/formats/megatron-torch.md.
#include <tessera/format/format_driver.h>

#include <string_view>

namespace tessera {

/// The driver; stateless, lives as long as the program.
const FormatDriver& megatron_torch_driver();

/// Whether a folder of this name is a rank's ("mp_rank_00_003"), and a file of this name what lies
/// in one ("model_optim_rng.pt", "distrib_optim.pt").
bool is_megatron_rank_folder(std::string_view name);
bool is_megatron_rank_file(std::string_view name);

}  // namespace tessera

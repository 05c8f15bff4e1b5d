#pragma once
// deepspeed-zero: what DeepSpeed's engine saves under stages 0 to 3, as one logical state. Layout,
// names and what is refused: docs/formats/deepspeed-zero.md.
#include <tessera/format/format_driver.h>

#include <string_view>

namespace tessera {

const FormatDriver& deepspeed_zero_driver();

/// Whether a file of this name is one of the files of DeepSpeed's tag folders, or of a rank there
/// ("mp_rank_00_model_states.pt", "zero_pp_rank_3_mp_rank_00_optim_states.pt").
bool is_deepspeed_file_name(std::string_view name);

}  // namespace tessera

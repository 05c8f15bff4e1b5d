#pragma once
// deepspeed-zero: what DeepSpeed's engine saves under stages 0 to 3, as one logical state. Layout,
// names and what is refused: docs/formats/deepspeed-zero.md.
#include <tessera/format/format_driver.h>

#include <string_view>

namespace tessera {

const FormatDriver& deepspeed_zero_driver();

/// The ZeRO stage that is written, by deepspeed-universal too (which has the folder of stage 3 or
/// not): 1, 2 or 3.
inline constexpr OptionOf<std::int64_t> kZeroStageFlag{
    {FormatOption::Kind::kChoice, "--zero-stage", "1|2|3",
     "DeepSpeed: the ZeRO stage that is written; default: the source's, else 2"}};

/// Whether a file of this name is one of the files of DeepSpeed's tag folders, or of a rank there
/// ("mp_rank_00_model_states.pt", "zero_pp_rank_3_mp_rank_00_optim_states.pt").
bool is_deepspeed_file_name(std::string_view name);

}  // namespace tessera

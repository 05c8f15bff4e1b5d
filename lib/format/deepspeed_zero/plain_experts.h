#pragma once
// A mixture of experts without ZeRO.
//
//   mp_rank_00_model_states.pt                what is no expert's
//   layer_<L>_expert_<E>_mp_rank_..           one expert of one layer, E counted in the whole
//   expp_rank_<S>_mp_rank_00_optim_states.pt  torch's state dict of a rank that holds share S: ids of
//                                             all else, then (groups marked `moe`) of its experts
//
// Checked with DeepSpeed 0.19.8 (engine.py, _save_moe_checkpoint).
#include "lib/format/deepspeed_zero/checkpoint.h"
#include "lib/format/deepspeed_zero/state_assembler.h"

namespace tessera::deepspeed {

/// Adds the experts' weights, and all state by names. Where ids leave open whose they are (frozen
/// experts, several groups of equal shapes), each share's state stays under its ids, below
/// `rank_<S>`, and a note says so. Returns how many ranks share out the experts.
std::int64_t add_plain_experts(ZeroCheckpoint& checkpoint, StateAssembler& state);

}  // namespace tessera::deepspeed

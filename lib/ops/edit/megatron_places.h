#pragma once
// Where Megatron's two formats for all ranks keep model and optimizer. Names of weights are those
// that rules gave; this is about what stands before and behind them.
//
//              Megatron-FSDP (fsdp_dtensor)                  torch_dist
//   weight     model.module.<w>: fp32                        <w>: as trained
//   master     is the weight                                 optimizer.state.param.<w>
//   moments    optimizer.state.module.module.module.<w>.<m>  optimizer.state.<m>.<w>
//   options    optimizer.param_to_group_meta.<...>.<w>.<o>   optimizer.optimizer.param_groups
//
// Sources: megatron/core/optimizer/distrib_optimizer.py (sharded_param_state_fsdp_dtensor,
// sharded_param_state_fully_reshardable), megatron/training/checkpointing.py and
// tools/checkpoint/checkpoint_inspector.py of Megatron-LM.
#include <tessera/state/manifest.h>

#include <string_view>
#include <vector>

namespace tessera {

enum class MegatronPlaces : std::uint8_t { kFsdp, kDist };

/// "fsdp_dtensor", "torch_dist", as Megatron-LM calls them; throws kInvalidArgument for any other.
MegatronPlaces parse_megatron_places(std::string_view text);

/// Moves model and optimizer to the places of a format. Tensors must be located. The notes say what
/// was inferred. Throws kUnsupported: several models or optimizers, options that no file assigns to
/// parameters; kInvalidArgument: a gated matrix that is whole, or halves of one that is not gated,
/// where kFsdp is asked for.
std::vector<Note> move_to_megatron_places(Manifest& manifest, MegatronPlaces places);

/// Throws kUnsupported where the model has a gated matrix in halves (`weight_w`, `weight_v`), as
/// Megatron-FSDP has it and no other form of Megatron's reads it.
void refuse_halves(const Manifest& manifest, std::string_view format);

}  // namespace tessera

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

/// The optimizer of a torch_dist checkpoint, whose state is tensors of the parameters' shapes here
/// (whatever it was saved as: buckets, flattened ranges), says so where Megatron looks for it before
/// it loads: as fully_reshardable, in `param_state_sharding_type` and in `content_metadata`.
/// State that still lies in buckets, or is no distributed optimizer's, stays as it is.
void say_fully_reshardable(Manifest& manifest);

/// Where no gated matrix is in halves (any longer), `content_metadata` says so, by which Megatron names
/// what it asks for (singleton_local_shards).
void say_gates_are_whole(Manifest& manifest);

/// The layers that predict further tokens, by the name that a format has for the layer inside:
///
///   torch_dist     mtp.layers.<n>.transformer_layer, whatever wrote it
///   rank files     the same up to core 0.16; mtp.layers.<n>.mtp_model_layer from 0.17 on, which `args`
///                  show by an argument that is as old as that
///
/// Those of hybrid models (mtp_model_layer.layers.<m>) have one name in both. Source: sharded_state_dict
/// of MultiTokenPredictionLayer, megatron/core/transformer/multi_token_prediction.py.
void name_further_layers(Manifest& manifest, bool of_rank_files);

/// torch_dist's masters and groups get the names that are read of rank files: `fp32_param`, and
/// `optimizer.param_groups`. `param_state_sharding_type` goes: it says how torch_dist stores them.
void name_optimizer_as_rank_files(Manifest& manifest);

/// Throws kUnsupported where the model has a gated matrix in halves (`weight_w`, `weight_v`), as
/// Megatron-FSDP and torch_dist with singleton_local_shards have it.
void refuse_halves(const Manifest& manifest, std::string_view format);

}  // namespace tessera

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

#include <cstdint>
#include <optional>
#include <string>
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
///
/// `step`: of all parameters, where rank files keep one for each; a plain optimizer (one that is not
/// distributed) then has it once, as it has in torch_dist.
std::vector<Note> move_to_megatron_places(Manifest& manifest, MegatronPlaces places,
                                          std::optional<double> step = {});

/// Throws kUnsupported where torch_dist has a plain optimizer's state (`common_step`): rank files have its
/// groups' members by each rank's own ids, which it does not keep.
void refuse_plain_optimizer(const Manifest& manifest);

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
///
/// `core`: for rank files of that release, 0.<core>, whatever args show.
void name_further_layers(Manifest& manifest, bool of_rank_files,
                         std::optional<std::int64_t> core = {});
/// The same for one name of a module's tensor or value.
std::string further_layer_name(const Manifest& manifest, const std::string& fqn, bool of_rank_files,
                               std::optional<std::int64_t> core = {});

/// torch_dist's masters and groups get the names that are read of rank files: `fp32_param`, and
/// `optimizer.param_groups`. `param_state_sharding_type` goes: it says how torch_dist stores them.
void name_optimizer_as_rank_files(Manifest& manifest);

/// Throws kInvalidArgument, with the command that works, where torch_dist has experts one by one
/// (singleton_local_shards: "experts.experts.3.linear_fc1.weight_w"), whose names are those of no rules.
void refuse_single_experts(const Manifest& manifest);

/// Throws kUnsupported where the model has a gated matrix in halves (`weight_w`, `weight_v`), as
/// Megatron-FSDP and torch_dist with singleton_local_shards have it.
void refuse_halves(const Manifest& manifest, std::string_view format);

}  // namespace tessera

#pragma once
// Weights of a torch_dist checkpoint by the names of the modules, which Megatron's rank files have:
//
//   torch_dist                                        rank files
//   decoder.layers.mlp.linear_fc2.weight [L, ...]      decoder.layers.<l>.mlp.linear_fc2.weight
//   self_attention.linear_qkv.layer_norm_weight        the same, of Transformer Engine's layers; input_layernorm.weight
//   mlp.linear_fc1.layer_norm_weight                   the same; pre_mlp_layernorm.weight
//   experts.experts.linear_fc1.weight [E, ...]         experts.linear_fc1.weight<e>, where they are grouped;
//                                                      experts.local_experts.<e>.linear_fc1.weight
//
// Which modules a run has, its `args` say: transformer_impl, moe_grouped_gemm.
// Source: sharded_state_dict of TransformerBlock, TransformerLayer, SequentialMLP and TEGroupedLinear in
// megatron/core, and the key maps of models/gpt/gpt_layer_specs.py.
#include <tessera/ops/rules.h>
#include <tessera/state/manifest.h>

#include <optional>

namespace tessera {

/// The rules that give them these names, as --rules would; nullopt where nothing is stacked. Throws
/// kUnsupported, with the command that works, where names depend on modules that args do not name.
std::optional<RulesRequest> rules_to_modules(const Manifest& manifest);

/// Puts the model's tensors in the order in which Megatron's modules register them, layer by layer: ids of
/// an optimizer, and places in the buffers of a distributed one, follow it. torch_dist keeps none, and the
/// order of its files is that of whoever wrote which part. Names that are not known here keep their order
/// behind those of their layer; the note says so where an optimizer depends on it.
std::optional<Note> order_as_modules(Manifest& manifest);

}  // namespace tessera

#pragma once
// What Megatron's modules keep beside their weights (`_extra_state`: scales of Transformer Engine and the
// like), by the names that each of its two forms has for it:
//
//   torch_dist                                                rank files
//   decoder.layers.mlp.linear_fc2._extra_state/shard_<l>_<L>   decoder.layers.<l>.mlp.linear_fc2._extra_state
//   decoder.layers.<l>.mlp.linear_fc2._extra_state/shard_0_1   the same
//   ...experts.experts.linear_fc1._extra_state/shard_<l>.<e>_<L>.<E>
//                                                             ...experts.local_experts.<e>.linear_fc1._extra_state
//   (one for each expert)                                     ...experts.linear_fc1._extra_state: grouped experts have one
//
// torch_dist has one for all tensor-parallel ranks, which all of them load. What differs from rank to rank
// has no place there, nor has what one expert of a group has to itself a place in rank files.
// Sources: make_sharded_object_for_checkpoint in megatron/core/transformer/utils.py, TEGroupedLinear in
// megatron/core/extensions/transformer_engine.py.
#include <tessera/state/manifest.h>

#include <cstdint>
#include <optional>

namespace tessera {

/// For a result in rank files; weights have their names there. The model then stands under "model".
/// `manifest`: located. Throws kUnsupported naming what has no place.
/// `core`: as name_further_layers() takes it.
void extra_state_to_modules(Manifest& manifest, std::optional<std::int64_t> core = {});

/// For a result in torch_dist; weights have their names there, which show whether layers are stacked.
/// Throws kUnsupported naming what has no place.
void extra_state_to_objects(Manifest& manifest);

}  // namespace tessera

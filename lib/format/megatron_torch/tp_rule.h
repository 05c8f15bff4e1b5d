#pragma once
// How Megatron's own names say what tensor parallelism does to a parameter. Pure.
//
//   column parallel  rows of the weight, and the bias    linear_qkv, linear_fc1, dense_h_to_4h, ..
//   vocabulary       the same, over a padded vocabulary  word_embeddings, output_layer
//   row parallel     columns of the weight; bias whole   linear_proj, linear_fc2, dense_4h_to_h, ..
//   replicated       norms, routers, position embeddings
//   packed experts   the dim of ffn of the shape in packed_experts.h
//
// Where layers are stacked (torch_dist), dims are counted from the last one.
#include <tessera/tensor/shape.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace tessera::megatron_torch {

enum class TpCut : std::uint8_t { kColumn, kVocabulary, kRow, kReplicated, kUnknown };

struct TpRule {
  TpCut cut = TpCut::kUnknown;
  bool bias = false;   // one dim less than the weight: what is cut of it is its last dim
  bool gated = false;  // first MLP matrix: [gate; up] where the activation is gated
  /// The dim that is cut of a tensor of `rank` dims; -1: none.
  int dim(int rank) const;
};

/// `fqn`: with or without prefixes such as "model." or "optimizer.state.exp_avg.".
TpRule tp_rule(std::string_view fqn);

/// Multi-latent attention's projections to the latent space. tp_rule() has them whole on every rank,
/// as Transformer Engine's layers are; those of core's local spec are cut by rows, which their
/// names do not say. Source: megatron/core/models/gpt/gpt_layer_specs.py, get_gpt_layer_local_spec.
bool is_latent_projection(std::string_view fqn);

/// Is the first MLP matrix of these a pair [gate; up]? Its rows are twice the columns of the second
/// then, at any tensor-parallel size. Weights by name, prefixes alike; layers may be stacked.
bool gated_by_shapes(const std::map<std::string, Shape>& weights);

/// A non-negative decimal of at most nine digits.
bool is_number(std::string_view text);

/// "decoder.layers.12.mlp.x" cut at the number of its layer.
struct LayerName {
  std::string before;  // "decoder.layers."
  std::int64_t layer = 0;
  std::string after;  // ".mlp.x"
  std::string with(std::int64_t number) const;
};
/// The first "layers" followed by a number; nullopt: no such name.
std::optional<LayerName> layer_name(std::string_view fqn);

/// Part of a stack of layers with one more dim in front: "decoder.layers.mlp.linear_fc1.weight".
bool is_layer_stack(std::string_view fqn);
/// Where the number of a layer would stand in the name of such a stack; nullopt: it is none.
std::optional<std::size_t> layer_place(std::string_view fqn);

}  // namespace tessera::megatron_torch

#pragma once
// The order in which Megatron-core's own modules register the parameters of a GPT model, which is
// the order of Module.parameters(). Two are in use for a transformer layer:
//
//   fused      Transformer Engine: a norm is part of the linear layer behind it
//                linear_proj, linear_qkv.{layer_norm_*, weight, bias}, q and k norms, linear_fc1.
//                {layer_norm_*, weight, bias}, linear_fc2
//   separate   core's own layers, whose norms stand before the attention and before the MLP; stored
//              under the same names
//
// Source: megatron/core/transformer/{attention,transformer_layer,mlp}.py, models/gpt. Pure.
#include <compare>
#include <cstdint>
#include <optional>
#include <string_view>

namespace tessera::megatron_dist {

enum class ModuleOrder : std::uint8_t { kFused, kSeparate };

struct ModulePlace {
  int section = 0;  // before the layers, in them, behind them
  std::int64_t layer = 0;
  int module = 0;
  int leaf = 0;
  auto operator<=>(const ModulePlace&) const = default;
};

/// `layer`: of a stack ("decoder.layers.mlp.x"), else -1. nullopt: the name is none of those above.
std::optional<ModulePlace> module_place(std::string_view name, std::int64_t layer,
                                        ModuleOrder order);

}  // namespace tessera::megatron_dist

#include "lib/format/megatron_dist/module_order.h"

#include <algorithm>
#include <array>
#include <string>

#include "lib/format/megatron_torch/tp_rule.h"

namespace tessera::megatron_dist {
namespace {

constexpr std::array<std::string_view, 8> kModules = {"input_layernorm",
                                                      "self_attention.linear_proj",
                                                      "self_attention.linear_qkv",
                                                      "self_attention.q_layernorm",
                                                      "self_attention.k_layernorm",
                                                      "pre_mlp_layernorm",
                                                      "mlp.linear_fc1",
                                                      "mlp.linear_fc2"};
constexpr std::array<std::string_view, 4> kLeaves = {"layer_norm_weight", "layer_norm_bias",
                                                     "weight", "bias"};
constexpr int kInputNorm = 0, kQkv = 2, kMlpNorm = 5, kFirstMlp = 6;

template <class Names>
int index_of(const Names& names, std::string_view name) {
  const auto found = std::ranges::find(names, name);
  return found == names.end() ? -1 : static_cast<int>(found - names.begin());
}

std::optional<ModulePlace> outer_place(std::string_view name) {
  if (name == "embedding.word_embeddings.weight") return ModulePlace{0, 0, 0, 0};
  if (name == "embedding.position_embeddings.weight") return ModulePlace{0, 0, 1, 0};
  if (name == "decoder.final_layernorm.weight") return ModulePlace{2, 0, 0, 0};
  if (name == "decoder.final_layernorm.bias") return ModulePlace{2, 0, 0, 1};
  if (name == "output_layer.weight") return ModulePlace{2, 0, 1, 0};
  if (name == "output_layer.bias") return ModulePlace{2, 0, 1, 1};
  return std::nullopt;
}

}  // namespace

std::optional<ModulePlace> module_place(std::string_view name, std::int64_t layer,
                                        ModuleOrder order) {
  constexpr std::string_view kLayers = "decoder.layers.";
  if (!name.starts_with(kLayers)) return outer_place(name);
  std::string rest(name.substr(kLayers.size()));
  if (const auto numbered = megatron_torch::layer_name(name); layer < 0 && numbered) {
    layer = numbered->layer;
    rest = numbered->after.substr(1);
  }
  const std::size_t dot = rest.rfind('.');
  if (dot == rest.npos || layer < 0) return std::nullopt;
  int module = index_of(kModules, std::string_view(rest).substr(0, dot));
  const int leaf = index_of(kLeaves, std::string_view(rest).substr(dot + 1));
  if (module < 0 || leaf < 0 || (leaf < 2 && module != kQkv && module != kFirstMlp))
    return std::nullopt;
  if (leaf < 2 && order == ModuleOrder::kSeparate) module = module == kQkv ? kInputNorm : kMlpNorm;
  return ModulePlace{1, layer, module, leaf};
}

}  // namespace tessera::megatron_dist

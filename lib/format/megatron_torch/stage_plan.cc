#include "lib/format/megatron_torch/stage_plan.h"

#include <fmt/format.h>
#include <tessera/base/error.h>

#include "lib/format/megatron_torch/model_names.h"

namespace tessera::megatron_torch {
namespace {

bool has_word(std::string_view name, std::initializer_list<std::string_view> words) {
  for (const std::string_view word : words)
    if (name.find(word) != std::string_view::npos) return true;
  return false;
}

/// Layers that predict further tokens stand behind the model's end.
bool is_extra_stack(std::string_view prefix) { return has_word(prefix, {"mtp."}); }

}  // namespace

StagePlan::StagePlan(const std::vector<std::string>& names, std::int64_t stages)
    : stages_(stages), first_layer_(names.size()) {
  for (std::size_t i = 0; i < names.size(); ++i) {
    order_.emplace(names[i], i);
    if (layer_name(names[i]) && i < first_layer_) first_layer_ = i;
  }
  if (stages == 1) return;
  std::int64_t layers = 0;
  for (const auto& [prefix, count] : count_layers(names)) {
    if (is_extra_stack(prefix)) continue;
    if (!stack_.empty())
      fail(Code::kUnsupported,
           fmt::format("layers of two stacks, {}N and {}N, over pipeline stages", stack_, prefix));
    stack_ = prefix;
    layers = count;
  }
  if (stack_.empty())
    fail(Code::kUnsupported,
         "no layers are numbered in the model's names: nothing to share among "
         "pipeline stages");
  if (layers % stages != 0)
    in_tensor(stack_, [&] {
      fail(Code::kInvalidArgument,
           fmt::format("{} layers cannot be shared evenly by {} pipeline stages", layers, stages));
    });
  per_stage_ = layers / stages;
}

StagePlace StagePlan::place(const std::string& name) const {
  if (stages_ == 1) return {};
  if (const auto layer = layer_name(name); layer && layer->before == stack_) {
    const std::int64_t stage = layer->layer / per_stage_;
    return {stage, -stage * per_stage_};
  }
  if (is_extra_stack(name) || has_word(name, {"final_layernorm", "final_norm", "output_layer",
                                              "lm_head", "pooler", "binary_head", "for_head"}))
    return {stages_ - 1, 0};
  if (has_word(name, {"embedding"})) return {};
  const auto at = order_.find(name);
  return {at != order_.end() && at->second < first_layer_ ? 0 : stages_ - 1, 0};
}

}  // namespace tessera::megatron_torch

#include "lib/format/megatron_torch/stage_plan.h"

#include <fmt/format.h>
#include <tessera/base/error.h>

#include <algorithm>

#include "lib/format/megatron_torch/model_names.h"
#include "lib/format/megatron_torch/packed_experts.h"

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

StagePlan::StagePlan(const std::vector<std::string>& names, const TargetGrid& grid)
    : grid_(grid), first_layer_(names.size()) {
  for (std::size_t i = 0; i < names.size(); ++i) {
    order_.emplace(names[i], i);
    if (layer_name(names[i]) && i < first_layer_) first_layer_ = i;
    has_experts_ |= is_expert(names[i]);
  }
  if (grid.vpp > 1 && grid.pp == 1)
    fail(Code::kInvalidArgument,
         fmt::format("vpp={} without pipeline stages: only several stages interleave", grid.vpp),
         "add pp=2 or more to --mesh");
  if (grid.pp > 1) share_layers(names);
  if (grid.ep > 1) share_experts(names);
}

void StagePlan::share_layers(const std::vector<std::string>& names) {
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
  const std::int64_t parts = grid_.pp * grid_.vpp;
  if (layers % parts != 0)
    fail(Code::kInvalidArgument,
         fmt::format("{} layers cannot be shared evenly by {} pipeline stages{} (the tensors {}*)",
                     layers, grid_.pp,
                     grid_.vpp > 1 ? fmt::format(" of {} chunks each", grid_.vpp) : "", stack_));
  per_chunk_ = layers / parts;
}

void StagePlan::share_experts(const std::vector<std::string>& names) {
  if (!has_experts_)
    fail(Code::kInvalidArgument,
         fmt::format("ep={}: the model has no experts to share among expert-parallel ranks",
                     grid_.ep),
         "leave ep out of --mesh");
  for (const std::string& name : names) {
    const auto expert = expert_name(name);
    if (!expert && is_expert(name) && !is_packed(name) && !name.ends_with("_extra_state"))
      in_tensor(name, [] { fail_packed_name(); });
    if (!expert) continue;
    std::int64_t& count = experts_[expert->before + "*" + expert->after];
    count = std::max(count, expert->expert + 1);
  }
  for (auto& [family, count] : experts_) {
    if (count % grid_.ep != 0)
      fail(Code::kInvalidArgument,
           fmt::format("{} experts cannot be shared evenly by {} expert-parallel ranks (the "
                       "tensors {})",
                       count, grid_.ep, family));
    count /= grid_.ep;
  }
}

StagePlace StagePlan::place(const std::string& name) const {
  StagePlace out = layers_place(name);
  if (grid_.ep == 1) return out;
  if (const auto expert = expert_name(name)) {
    // What experts keep beside tensors (`_extra_state`) goes where their tensors are.
    const std::string all = expert->before + "*";
    const auto family = experts_.lower_bound(all);
    if (family == experts_.end() || !family->first.starts_with(all)) return out;
    out.expert_rank = expert->expert / family->second;
    out.expert_offset = -*out.expert_rank * family->second;
  }
  return out;
}

StagePlace StagePlan::layers_place(const std::string& name) const {
  if (grid_.pp == 1) return {};
  if (const auto layer = layer_name(name); layer && layer->before == stack_) {
    const std::int64_t part = layer->layer / per_chunk_;
    return {part % grid_.pp, part / grid_.pp, -part * per_chunk_, {}, 0};
  }
  const StagePlace last{grid_.pp - 1, grid_.vpp - 1, 0, {}, 0};
  if (is_extra_stack(name) || has_word(name, {"final_layernorm", "final_norm", "output_layer",
                                              "lm_head", "pooler", "binary_head", "for_head"}))
    return last;
  if (has_word(name, {"embedding"})) return {};
  const auto at = order_.find(name);
  return at != order_.end() && at->second < first_layer_ ? StagePlace{} : last;
}

}  // namespace tessera::megatron_torch

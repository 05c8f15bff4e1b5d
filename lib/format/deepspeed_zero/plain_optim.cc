#include "lib/format/deepspeed_zero/plain_optim.h"

#include <fmt/format.h>
#include <tessera/base/error.h>

#include <unordered_map>

#include "lib/format/deepspeed_zero/names.h"
#include "lib/format/deepspeed_zero/values.h"

namespace tessera::deepspeed {
namespace {

constexpr std::string_view kMasters = "fp32_groups";

using Masters = std::vector<std::pair<std::int64_t, std::uint32_t>>;  // id, tensor

Masters masters_by_id(const Value& groups, const Value& stored) {
  const ValueList& options = list_of(groups, kParamGroups);
  const ValueList& held = list_of(stored, kMasters);
  if (options.size() != held.size())
    fail(Code::kCorrupt, fmt::format("the optimizer has {} groups, \"{}\" has {}", options.size(),
                                     kMasters, held.size()));
  Masters out;
  for (std::size_t g = 0; g < held.size(); ++g) {
    const auto ids = counts_of(require(options[g], kParams), kParams);
    const auto tensors = tensor_list_of(held[g], kMasters);
    if (ids.size() != tensors.size())
      fail(Code::kCorrupt, fmt::format("group {} lists {} parameters, \"{}\" holds {} of it", g,
                                       ids.size(), kMasters, tensors.size()));
    for (std::size_t i = 0; i < ids.size(); ++i) out.emplace_back(ids[i], tensors[i]);
  }
  return out;
}

/// The states, each with its master. An id without state (SGD) gets one that is its master alone.
Value with_masters(const Value& states, const Masters& masters) {
  ValueDict out = dict_of(states, kState);
  std::unordered_map<std::int64_t, std::size_t> place;
  for (std::size_t i = 0; i < out.size(); ++i) place.emplace(count_of(out[i].first, kState), i);
  for (const auto& [id, tensor] : masters) {
    const auto [found, is_new] = place.try_emplace(id, out.size());
    if (is_new) out.emplace_back(Value::integer(id), Value::dict({}));
    ValueDict leaves = dict_of(out[found->second].second, kState);
    leaves.emplace_back(text(kFp32Leaf), Value::tensor(tensor));
    out[found->second].second = Value::dict(std::move(leaves));
  }
  return Value::dict(std::move(out));
}

}  // namespace

std::optional<PlainOptimizer> unwrap_optimizer(const Value& stored) {
  const Value* inner = stored.find(kOptimizerStateDict);
  const Value* masters = stored.find(kMasters);
  if (inner == nullptr || masters == nullptr) return std::nullopt;
  const Masters by_id = masters_by_id(require(*inner, kParamGroups), *masters);
  ValueDict optimizer = dict_of(*inner, kOptimizerStateDict);
  for (auto& [key, value] : optimizer)
    if (key == text(kState)) value = with_masters(value, by_id);
  ValueDict fields;
  for (const auto& entry : dict_of(stored, kOptimizer))
    if (entry.first != text(kOptimizerStateDict) && entry.first != text(kMasters))
      fields.push_back(entry);
  return PlainOptimizer{Value::dict(std::move(optimizer)), Value::dict(std::move(fields))};
}

}  // namespace tessera::deepspeed

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

Masters masters_by_id(const Field& groups, const Field& masters) {
  const std::vector<Field> options = groups.items(), held = masters.items();
  if (options.size() != held.size())
    fail(Code::kCorrupt, fmt::format("the optimizer has {} groups, \"{}\" has {}", options.size(),
                                     kMasters, held.size()));
  Masters out;
  for (std::size_t g = 0; g < held.size(); ++g) {
    const auto ids = options[g].at(kParams).counts();
    const auto tensors = tensor_list_of(held[g]);
    if (ids.size() != tensors.size())
      fail(Code::kCorrupt, fmt::format("group {} lists {} parameters, \"{}\" holds {} of it", g,
                                       ids.size(), kMasters, tensors.size()));
    for (std::size_t i = 0; i < ids.size(); ++i) out.emplace_back(ids[i], tensors[i]);
  }
  return out;
}

/// The states, each with its master. An id without state (SGD) gets one that is its master alone.
Value with_masters(const Field& states, const Masters& masters) {
  ValueDict out = states.dict();
  std::unordered_map<std::int64_t, std::size_t> place;
  std::size_t i = 0;
  for (const Field::Entry& entry : states.entries()) place.emplace(entry.key.count(), i++);
  for (const auto& [id, tensor] : masters) {
    const auto [found, is_new] = place.try_emplace(id, out.size());
    if (is_new) out.emplace_back(Value::integer(id), Value::dict({}));
    ValueDict leaves = Field(out[found->second].second, {}, std::string(kState)).dict();
    leaves.emplace_back(text(kFp32Leaf), Value::tensor(tensor));
    out[found->second].second = Value::dict(std::move(leaves));
  }
  return Value::dict(std::move(out));
}

}  // namespace

std::optional<PlainOptimizer> unwrap_optimizer(const Value& stored) {
  const Field root(stored);
  const auto inner = root.find(kOptimizerStateDict), masters = root.find(kMasters);
  if (!inner || !masters) return std::nullopt;
  const Masters by_id = masters_by_id(inner->at(kParamGroups), *masters);
  ValueDict optimizer = inner->dict();
  for (auto& [key, value] : optimizer)
    if (key == text(kState)) value = with_masters(inner->at(kState), by_id);
  ValueDict fields;
  for (const auto& entry : root.dict())
    if (entry.first != text(kOptimizerStateDict) && entry.first != text(kMasters))
      fields.push_back(entry);
  return PlainOptimizer{Value::dict(std::move(optimizer)), Value::dict(std::move(fields))};
}

}  // namespace tessera::deepspeed

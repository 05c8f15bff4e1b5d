#include "fsdp_core/bridge/spread.h"

#include <ATen/ATen.h>
#include <tessera/layout/layout.h>

#include <algorithm>
#include <numeric>

namespace tessera::fsdp {
namespace {

constexpr CommPhase kPhase = CommPhase::kSummon;

std::int64_t numel_of(const std::vector<std::int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

}  // namespace

Spread Spread::of(std::shared_ptr<detail::Unit> unit, const ParamGroup& group, std::size_t p) {
  Spread out{std::move(unit), group.params()[p].sizes, {}, false};
  const UnitLayout& layout = group.layout();
  const std::int64_t numel = numel_of(out.shape);
  for (int r = 0; r < layout.shards(); ++r) {
    if (layout.in_place()) {
      const std::int64_t begin = r * layout.shard_numel() - layout.full(p).offset;
      out.ranges.emplace_back(std::clamp(begin, std::int64_t{0}, numel),
                              std::clamp(begin + layout.shard_numel(), std::int64_t{0}, numel));
    } else {
      const RowRange rows = chunk_rows(out.shape[0], layout.shards(), r);
      const std::int64_t row = out.shape[0] == 0 ? 0 : numel / out.shape[0];
      out.ranges.emplace_back(rows.begin * row, rows.end * row);
    }
  }
  return out;
}

at::Tensor Spread::gather(const at::Tensor& local) const {
  at::NoGradGuard no_grad;
  if (ranges.size() == 1)
    return here() ? local.detach().reshape(shape).clone(at::MemoryFormat::Contiguous)
                  : at::Tensor();
  std::int64_t longest = 0;
  for (const auto& [begin, end] : ranges) longest = std::max(longest, end - begin);
  const auto shards = static_cast<std::int64_t>(ranges.size());
  at::Tensor parts = at::zeros({shards * longest}, local.options().requires_grad(false));
  at::Tensor own = parts.narrow(0, unit->shard_comm().rank() * longest, longest);
  if (local.numel() > 0) own.narrow(0, 0, local.numel()).copy_(local.detach().reshape({-1}));
  if (longest > 0) unit->shard_comm().all_gather_into(parts, own, {unit->name(), kPhase});
  if (!here()) return {};
  at::Tensor whole = at::empty(shape, parts.options());
  at::Tensor flat = whole.view({-1});
  for (std::int64_t r = 0; r < shards; ++r) {
    const auto& [begin, end] = ranges[static_cast<std::size_t>(r)];
    if (begin < end)
      flat.narrow(0, begin, end - begin).copy_(parts.narrow(0, r * longest, end - begin));
  }
  return whole;
}

void Spread::scatter(const at::Tensor& whole, const at::Tensor& local) const {
  at::NoGradGuard no_grad;
  at::Tensor all = whole;
  if (first_only) {
    if (!here()) all = at::empty(shape, local.options().requires_grad(false));
    at::Tensor flat = all.to(local.device(), local.scalar_type()).contiguous().view({-1});
    if (flat.numel() == 0) return;
    // From the first rank to its shard group, then from each of those to its replicas.
    UnitGroups& comms = unit->comms();
    if (comms.shards() > 1 && comms.replicate->rank() == 0)
      comms.shard->broadcast(flat, 0, {unit->name(), kPhase});
    if (comms.replicas() > 1) comms.replicate->broadcast(flat, 0, {unit->name(), kPhase});
    all = flat;
  }
  const auto& [begin, end] = ranges[static_cast<std::size_t>(unit->shard_comm().rank())];
  if (begin < end) local.detach().view({-1}).copy_(all.reshape({-1}).narrow(0, begin, end - begin));
}

}  // namespace tessera::fsdp

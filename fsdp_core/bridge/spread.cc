#include "fsdp_core/bridge/spread.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

#include "fsdp_core/bridge/gather_parts.h"

namespace tessera::fsdp {
namespace {

constexpr CommPhase kPhase = CommPhase::kSummon;

std::int64_t numel_of(const std::vector<std::int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

Spread::Ranges row_ranges(const std::vector<std::int64_t>& shape, int shards) {
  Spread::Ranges out;
  const std::int64_t row = shape[0] == 0 ? 0 : numel_of(shape) / shape[0];
  for (int r = 0; r < shards; ++r) {
    const RowRange rows = chunk_rows(shape[0], shards, r);
    out.emplace_back(rows.begin * row, rows.end * row);
  }
  return out;
}

}  // namespace

Spread Spread::of(std::shared_ptr<detail::Unit> unit, const ParamGroup& group, std::size_t p,
                  Form form) {
  Spread out{std::move(unit), &group, group.params()[p].sizes, {}, form};
  const UnitLayout& layout = group.layout();
  if (!layout.in_place()) {
    out.dim = layout.shard(p).dim;
    std::vector<std::int64_t> moved = out.shape;
    std::rotate(moved.begin(), moved.begin() + out.dim, moved.begin() + out.dim + 1);
    out.ranges = row_ranges(moved, layout.shards());
    return out;
  }
  const std::int64_t numel = numel_of(out.shape);
  for (int r = 0; r < layout.shards(); ++r) {
    const std::int64_t begin = r * layout.shard_numel() - layout.full(p).offset;
    out.ranges.emplace_back(std::clamp(begin, std::int64_t{0}, numel),
                            std::clamp(begin + layout.shard_numel(), std::int64_t{0}, numel));
  }
  return out;
}

Box Spread::box() const {
  const Shape whole(shape);
  if (form != Form::kRows || shape.empty()) return Box::whole(whole);
  return chunk_box(whole, 0, static_cast<int>(ranges.size()), comms().shard->rank());
}

/// Elements `kept` of the ravel that every rank has its part of; none: undefined.
at::Tensor Spread::join(const at::Tensor& part, const Ranges& parts,
                        std::pair<std::int64_t, std::int64_t> kept) const {
  at::NoGradGuard no_grad;
  const auto [first, last] = kept;
  const at::Tensor own = part.detach().reshape({-1}).to(device());
  at::Tensor out = at::empty({last - first}, own.options());
  std::vector<std::int64_t> lengths;
  for (const auto& [begin, end] : parts) lengths.push_back(end - begin);
  gather_parts(
      *comms().shard, own, lengths, {unit->name(), kPhase},
      [&](int rank, const at::Tensor& theirs) {
        const auto& [begin, end] = parts[static_cast<std::size_t>(rank)];
        const std::int64_t from = std::max(begin, first), to = std::min(end, last);
        if (from < to)
          out.narrow(0, from - first, to - from).copy_(theirs.narrow(0, from - begin, to - from));
      });
  return out;
}

/// Shards as `ranges` counts their elements.
at::Tensor Spread::cut_first(const at::Tensor& tensor) const {
  return dim == 0 ? tensor : tensor.movedim(dim, 0);
}

/// The other way, for the whole.
at::Tensor Spread::shaped(const at::Tensor& ravel) const {
  if (dim == 0) return ravel.view(shape);
  std::vector<std::int64_t> moved = shape;
  std::rotate(moved.begin(), moved.begin() + dim, moved.begin() + dim + 1);
  return ravel.view(moved).movedim(0, dim).contiguous();
}

at::Tensor Spread::gather_whole(const at::Tensor& local) const {
  return shaped(join(cut_first(local), ranges, {0, numel_of(shape)}));
}

at::Tensor Spread::gather(const at::Tensor& local) const {
  if (form == Form::kWhole || (form == Form::kRows && shape.empty())) return gather_whole(local);
  if (form == Form::kWholeOnFirstRank) {
    at::Tensor whole = join(cut_first(local), ranges, {0, here() ? numel_of(shape) : 0});
    return here() ? shaped(whole) : at::Tensor();
  }
  const Box mine = box();
  // Rows of a whole that is cut on another dim: each is spread over all shards.
  if (dim != 0) return gather_whole(local).narrow(0, mine.begin(0), mine.shape[0]).contiguous();
  const std::int64_t row = shape[0] == 0 ? 0 : numel_of(shape) / shape[0];
  const std::int64_t begin = mine.begin(0) * row;
  std::vector<std::int64_t> sizes = shape;
  sizes[0] = mine.shape[0];
  return join(local, ranges, {begin, begin + mine.shape.numel()}).view(sizes);
}

at::Tensor Spread::from_first_rank(const at::Tensor& whole, at::ScalarType type) const {
  at::Tensor flat = here() ? whole.to(device(), type).contiguous().view({-1})
                           : at::empty({numel_of(shape)}, at::dtype(type).device(device()));
  if (flat.numel() > 0) comms().broadcast(flat, {unit->name(), kPhase});
  return flat;
}

void Spread::scatter(const at::Tensor& given, const at::Tensor& local) const {
  at::NoGradGuard no_grad;
  at::Tensor all = given;
  if (form == Form::kWholeOnFirstRank) all = from_first_rank(given, local.scalar_type());
  if (form == Form::kRows && !shape.empty())
    all = join(given, row_ranges(shape, static_cast<int>(ranges.size())), {0, numel_of(shape)});
  const auto& [begin, end] = ranges[static_cast<std::size_t>(comms().shard->rank())];
  if (begin == end) return;
  const at::Tensor to = cut_first(local.detach());
  to.copy_(
      cut_first(all.reshape(shape)).reshape({-1}).narrow(0, begin, end - begin).view(to.sizes()));
}

}  // namespace tessera::fsdp

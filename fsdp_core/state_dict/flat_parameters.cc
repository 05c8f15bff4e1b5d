#include "fsdp_core/state_dict/flat_parameters.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>

#include "fsdp_core/bridge/dtype.h"

namespace tessera::fsdp {

std::string flat_name(const ModelTensors& model, const ModelTensor& tensor) {
  const auto at = std::ranges::find(model.units, tensor.unit);
  const std::string& fqn = model.unit_fqns[static_cast<std::size_t>(at - model.units.begin())];
  const auto& groups = tensor.unit->groups();
  const auto group =
      std::ranges::find_if(groups, [&](const auto& each) { return each.get() == tensor.group; });
  const auto number = group - groups.begin();
  return (fqn.empty() ? "" : fqn + ".") + "_flat_param" +
         (number == 0 ? "" : fmt::format("_{}", number));
}

std::int64_t flat_numel(const ParamGroup& group) {
  const std::size_t last = group.layout().parameters() - 1;
  return group.layout().full(last).offset + Shape(group.params()[last].sizes).numel();
}

std::pair<std::int64_t, std::int64_t> flat_range(const ParamGroup& group) {
  const UnitLayout& layout = group.layout();
  const std::int64_t total = flat_numel(group);
  const std::int64_t begin = std::min(layout.rank() * layout.shard_numel(), total);
  return {begin, begin + std::min(layout.shard_numel(), total - begin)};
}

std::pair<std::int64_t, std::int64_t> flat_range(const ParamGroup& group, std::size_t p) {
  const UnitLayout::ShardPlace& place = group.layout().shard(p);
  const std::int64_t begin = group.layout().full(p).offset + place.begin;
  return {begin, begin + place.numel};
}

LiveTensor flat_parameter(LiveMemory& memory, const ModelTensor& tensor, const std::string& name) {
  const ParamGroup& group = *tensor.group;
  const auto [begin, end] = flat_range(group);
  LiveTensor live =
      memory.piece(name, group.shard_buffer().narrow(0, 0, end - begin), group.dtypes().stored,
                   Shape({flat_numel(group)}), Chunk::whole_of({{begin}, Shape({end - begin})}));
  live.replicated = tensor.replicated;
  live.is_parameter = true;
  return live;
}

FlatPieces::FlatPieces(LiveMemory& memory, const ModelTensor& any, std::string name,
                       at::ScalarType dtype)
    : memory_(memory), group_(*any.group), name_(std::move(name)) {
  out_.spec = {dtype_of(dtype), Shape({flat_numel(group_)})};
  out_.replicated = any.replicated;
}

void FlatPieces::append(const at::Tensor& part, std::int64_t begin, std::int64_t end) {
  if (begin >= end) return;
  LiveTensor live = memory_.piece(name_, part, part.scalar_type(), out_.spec.shape,
                                  Chunk::whole_of({{begin}, Shape({end - begin})}));
  for (LivePiece& piece : live.pieces) out_.pieces.push_back(std::move(piece));
  owned_->push_back(std::move(live.owner));
}

void FlatPieces::add(std::size_t p, const at::Tensor& part) {
  const auto [begin, end] = flat_range(group_, p);
  append(part.detach().view({-1}), begin, end);
}

LiveTensor FlatPieces::finish() && {
  const auto [first, last] = flat_range(group_);
  const auto zeros = [&](std::int64_t begin, std::int64_t end) {
    begin = std::max(begin, first);
    end = std::min(end, last);
    if (begin >= end) return;
    append(at::zeros({end - begin}, scalar_type_of(out_.spec.dtype)), begin, end);
  };
  const std::size_t parameters = group_.layout().parameters();
  for (std::size_t p = 0; p + 1 < parameters; ++p)
    zeros(group_.layout().full(p).offset + Shape(group_.params()[p].sizes).numel(),
          group_.layout().full(p + 1).offset);
  out_.owner = owned_;
  return std::move(out_);
}

}  // namespace tessera::fsdp

// Whether groups have to record their members: a reader's answer, asked for before it is written.
#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/format/megatron_torch/id_match.h"
#include "lib/format/megatron_torch/optim_output.h"
#include "lib/format/megatron_torch/optim_parts.h"
#include "lib/state/parameter_shape.h"

namespace tessera::megatron_torch {

/// Ids run through the model: what a reader takes for the order of a group's members.
void OptimizerOutput::plan_order(const std::vector<std::string>& order) {
  if (!optim_ || distributed_) return;
  for (const Group& group : groups_) {
    std::vector<std::string_view> in_order;
    for (const std::string& name : order)
      if (group.members.contains(name)) in_order.push_back(name);
    if (!std::ranges::equal(in_order, group.listed)) records_ = true;
  }
  // Those of experts stand in a list of their own, where equal options do not say whose they are.
  if (!splits_experts_) return;
  for (std::size_t a = 0; a < groups_.size(); ++a)
    for (std::size_t b = 0; b < a; ++b)
      if (options_of(groups_[a]) == options_of(groups_[b])) records_ = true;
}

void OptimizerOutput::plan_record(const TargetCut& cut, std::int64_t rank,
                                  const std::vector<WrittenTensor>& tensors) {
  if (!optim_ || distributed_ || records_) return;
  for (const Share& share : shares(tensors))
    if (!is_found_by_shape(cut, rank, share)) records_ = true;
}

bool OptimizerOutput::is_found_by_shape(const TargetCut& cut, std::int64_t rank,
                                        const Share& share) const {
  const Numbered numbered = number(share);
  if (std::ranges::all_of(numbered, [](const auto& group) { return group.empty(); })) return true;
  std::map<const WrittenTensor*, std::size_t> places;
  std::vector<IdCandidate> candidates;
  for (const WrittenTensor* tensor : share.tensors) {
    places.emplace(tensor, candidates.size());
    candidates.push_back({tensor->fqn, part_of(cut, rank, *tensor, tensor->tensor).shape,
                          source_.tensors[tensor->tensor].spec.dtype});
  }
  std::vector<IdGroup> groups;
  IdMatch written;
  for (std::size_t g = 0; g < numbered.size(); ++g) {
    groups.push_back({{}, has_decay(options_of(*share.groups[g]))});
    written.emplace_back();
    for (const WrittenTensor* tensor : numbered[g]) {
      written.back().push_back(places.at(tensor));
      std::vector<std::pair<std::string_view, Shape>> leaves;
      if (const auto parameter = by_fqn_.find(tensor->fqn); parameter != by_fqn_.end())
        for (const OptimLeaf& leaf : parameter->second->leaves)
          if (leaf.tensor != kNoTensor && master_of(*parameter->second) != &leaf)
            leaves.emplace_back(leaf.name, part_of(cut, rank, *tensor, leaf.tensor).shape);
      groups.back().shapes.push_back(parameter_shape(leaves));
    }
  }
  return match_by_shape(groups, candidates) == written;
}

}  // namespace tessera::megatron_torch

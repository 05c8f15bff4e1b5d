// Whether groups have to record their members: a reader's answer, asked for before it is written.
#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/format/megatron_torch/id_match.h"
#include "lib/format/megatron_torch/model_names.h"
#include "lib/format/megatron_torch/optim_output.h"
#include "lib/format/megatron_torch/optim_parts.h"
#include "lib/state/parameter_shape.h"

namespace tessera::megatron_torch {
namespace {

/// As ranks' dicts are read again: of a family of experts those of each rank follow each other.
std::vector<std::string> order_as_read(const std::vector<std::string>& order, std::int64_t ep) {
  if (ep <= 1) return order;
  struct Place {
    std::size_t anchor = 0;  // of the first of its family
    std::int64_t expert = 0;
  };
  std::map<std::string, std::size_t> anchors;
  std::map<std::size_t, std::int64_t> counts;  // experts, by anchor
  std::vector<Place> places;
  for (const std::string& name : order) {
    Place place{places.size(), 0};
    if (const auto expert = expert_name(name)) {
      place.anchor = anchors.try_emplace(expert->before, place.anchor).first->second;
      place.expert = expert->expert;
      std::int64_t& count = counts[place.anchor];
      count = std::max(count, place.expert + 1);
    }
    places.push_back(place);
  }
  std::vector<std::size_t> read(order.size());
  for (std::size_t i = 0; i < read.size(); ++i) read[i] = i;
  std::ranges::stable_sort(read, {}, [&](std::size_t i) {
    const auto count = counts.find(places[i].anchor);
    const std::int64_t share =
        count == counts.end() ? 1 : std::max<std::int64_t>(1, count->second / ep);
    return std::pair(places[i].anchor, places[i].expert / share);
  });
  std::vector<std::string> out;
  for (const std::size_t i : read) out.push_back(order[i]);
  return out;
}

}  // namespace

/// Ids run through the model: what a reader takes for the order of a group's members.
void OptimizerOutput::plan_order(const std::vector<std::string>& names, std::int64_t ep) {
  if (!optim_ || distributed_) return;
  const std::vector<std::string> order = order_as_read(names, ep);
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

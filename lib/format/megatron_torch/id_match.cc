#include "lib/format/megatron_torch/id_match.h"

#include <tessera/state/optim_state.h>

namespace tessera::megatron_torch {
namespace {

using Numbers = std::vector<std::size_t>;

/// Matches ids of these groups with these candidates, and adds what it finds to `answer`.
bool match_groups(const std::vector<IdGroup>& groups, const Numbers& which,
                  const std::vector<IdCandidate>& candidates, const Numbers& among,
                  IdMatch& answer) {
  std::vector<std::optional<Shape>> shapes;
  Numbers sizes;
  for (const std::size_t g : which) {
    shapes.insert(shapes.end(), groups[g].shapes.begin(), groups[g].shapes.end());
    sizes.push_back(groups[g].shapes.size());
  }
  std::vector<Shape> allowed;
  for (const std::size_t c : among) allowed.push_back(candidates[c].shape);
  const IdMapping mapping = map_ids(shapes, sizes, allowed);
  if (!mapping.complete || !mapping.certain) return false;
  std::size_t next = 0;
  for (const std::size_t g : which)
    for (std::size_t i = 0; i < groups[g].shapes.size(); ++i)
      answer[g].push_back(among[static_cast<std::size_t>(mapping.candidate[next++])]);
  return true;
}

bool is_vector(const IdCandidate& candidate) {
  return candidate.shape.rank() <= 1 || candidate.fqn.ends_with(".bias");
}

}  // namespace

std::optional<IdMatch> match_by_shape(const std::vector<IdGroup>& groups,
                                      const std::vector<IdCandidate>& candidates) {
  Numbers all, decaying, others, params, matrices, vectors;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    all.push_back(g);
    (groups[g].decays ? decaying : others).push_back(g);
  }
  for (std::size_t c = 0; c < candidates.size(); ++c) {
    if (!is_floating(candidates[c].dtype) || candidates[c].fqn.ends_with("_extra_state")) continue;
    params.push_back(c);
    (is_vector(candidates[c]) ? vectors : matrices).push_back(c);
  }
  IdMatch answer(groups.size());
  if (match_groups(groups, all, candidates, params, answer)) return answer;
  answer.assign(groups.size(), {});
  if (match_groups(groups, decaying, candidates, matrices, answer) &&
      match_groups(groups, others, candidates, vectors, answer))
    return answer;
  return std::nullopt;
}

std::optional<std::vector<std::string>> recorded_members(const Value& group) {
  const Value* list = group.is_dict() ? group.find(kMembers) : nullptr;
  if (list == nullptr || list->kind() != Value::Kind::kList) return std::nullopt;
  std::vector<std::string> names;
  for (const Value& item : list->as_list()) {
    if (!item.is_string()) return std::nullopt;
    names.push_back(item.as_string());
  }
  return names;
}

Value names_value(const std::vector<std::string>& names) {
  ValueList items;
  for (const std::string& name : names) items.push_back(Value::string(name));
  return Value::list(std::move(items));
}

}  // namespace tessera::megatron_torch

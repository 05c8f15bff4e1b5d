// Integer ids to parameters, by order and shape.
#include <tessera/state/optim_state.h>

#include <algorithm>

namespace tessera {
namespace {

bool fits(const std::optional<Shape>& id, const Shape& candidate) {
  return !id || *id == candidate;
}

/// Greedy in one direction: each id takes the next candidate it fits. That is a subsequence match:
/// it fails only when none exists.
std::vector<std::int64_t> match(const std::vector<std::optional<Shape>>& ids,
                                const std::vector<Shape>& candidates, std::vector<bool>& taken,
                                bool backwards) {
  std::vector<std::int64_t> out(ids.size(), -1);
  auto next = backwards ? static_cast<std::int64_t>(candidates.size()) - 1 : 0;
  for (std::size_t k = 0; k < ids.size(); ++k) {
    const std::size_t i = backwards ? ids.size() - 1 - k : k;
    auto at = next;
    const auto inside = [&] {
      return at >= 0 && at < static_cast<std::int64_t>(candidates.size());
    };
    while (inside() && (taken[static_cast<std::size_t>(at)] ||
                        !fits(ids[i], candidates[static_cast<std::size_t>(at)])))
      at += backwards ? -1 : 1;
    if (!inside()) continue;
    out[i] = at;
    next = at + (backwards ? -1 : 1);
  }
  for (std::int64_t c : out)
    if (c >= 0) taken[static_cast<std::size_t>(c)] = true;
  return out;
}

}  // namespace

IdMapping map_ids(const std::vector<std::optional<Shape>>& ids,
                  const std::vector<std::size_t>& group_sizes,
                  const std::vector<Shape>& candidates) {
  // Ids run through the model's parameters in order inside each group; groups interleave. Groups
  // whose shapes are all known go first: what they leave narrows down the ids without state.
  struct Group {
    std::size_t begin, size;
    bool known;
  };
  std::vector<Group> groups;
  std::size_t begin = 0;
  for (const std::size_t size : group_sizes) {
    const auto first = ids.begin() + static_cast<std::ptrdiff_t>(begin);
    const bool known = std::all_of(first, first + static_cast<std::ptrdiff_t>(size),
                                   [](const auto& id) { return id.has_value(); });
    groups.push_back({begin, size, known});
    begin += size;
  }
  std::ranges::stable_partition(groups, [](const Group& group) { return group.known; });
  IdMapping mapping;
  mapping.candidate.assign(ids.size(), -1);
  std::vector<bool> taken(candidates.size());
  mapping.certain = true;
  for (const Group& group : groups) {
    const auto from = static_cast<std::ptrdiff_t>(group.begin);
    const std::vector<std::optional<Shape>> part(
        ids.begin() + from, ids.begin() + from + static_cast<std::ptrdiff_t>(group.size));
    std::vector<bool> other = taken;
    const std::vector<std::int64_t> last = match(part, candidates, other, true);
    const std::vector<std::int64_t> first = match(part, candidates, taken, false);
    std::ranges::copy(first, mapping.candidate.begin() + from);
    mapping.certain = mapping.certain && first == last;
  }
  mapping.complete = std::ranges::find(mapping.candidate, -1) == mapping.candidate.end();
  mapping.certain = mapping.certain && mapping.complete;
  return mapping;
}

}  // namespace tessera

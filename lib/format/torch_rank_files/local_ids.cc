// Which parameter, or flat parameter, an id of a LOCAL optimizer means: by the record's word, else
// by order and sizes.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/format/torch_rank_files.h>
#include <tessera/state/optim_state.h>

#include <algorithm>

#include "lib/format/torch_rank_files/local_leaves.h"
#include "lib/format/torch_rank_files/local_state.h"

namespace tessera::rank_files {

std::vector<LocalState::Target> LocalState::targets_in_order(bool whole_units,
                                                             bool trained_only) const {
  std::vector<Target> out;
  std::map<std::string, Target> by_name;
  for (std::size_t u = 0; u < units_.size(); ++u) {
    const RankEntry* stored = units_[u].entry;
    if (trained_only && stored && !stored->leaves.front().sharded->wrapper_requires_grad) continue;
    if (whole_units) out.push_back({u, -1});
    for (std::size_t p = 0; p < units_[u].parameters.size(); ++p)
      by_name.emplace(units_[u].parameters[p].fqn, Target{u, static_cast<std::int64_t>(p)});
  }
  if (whole_units) return out;
  // The model's order: as recorded, else as the slices of the weights stand, else unit by unit.
  const auto take = [&](const std::string& fqn) {
    const auto found = by_name.find(fqn);
    if (found == by_name.end()) return;
    out.push_back(found->second);
    by_name.erase(found);
  };
  for (const std::string& fqn : record_->order) take(fqn);
  for (const RankEntry& entry : states_.entries)
    if (const auto slice = slices_.find(entry.name); slice != slices_.end())
      take(units_[slice->second.first].parameters[slice->second.second].fqn);
  if (state_alone_)
    for (const RankEntry& entry : states_.entries)
      if (entry.is_sharded() && !entry.path.empty()) take(entry.path.back().key);
  for (const Unit& unit : units_)
    for (const FlatSegment& segment : unit.parameters) take(segment.fqn);
  return out;
}

/// Elements of each id's array state: on one rank, or on all of them together.
std::map<std::int64_t, std::int64_t> LocalState::stored_numels(const Optimizer& optimizer,
                                                               bool sum) const {
  std::map<std::int64_t, std::int64_t> out;
  for (const RankEntry& entry : states_.entries) {
    const auto id = state_id(entry.path, optimizer.prefix);
    if (!id || !all_arrays(entry, bytes_)) continue;
    std::int64_t total = 0;
    for (const RankLeaf& leaf : entry.leaves) total += numel_of(leaf, bytes_);
    // The most of any leaf: one may have lost a rank's part.
    std::int64_t& most = out[*id];
    most = std::max(most, sum ? total : numel_of(entry.leaves.front(), bytes_));
  }
  return out;
}

/// Ranks whose files are there, with no state at all in this optimizer, when others have some.
std::vector<std::int64_t> LocalState::ranks_without_state(const Optimizer& optimizer) const {
  std::set<std::int64_t> with;
  for (const RankEntry& entry : states_.entries)
    if (state_id(entry.path, optimizer.prefix))
      for (const RankLeaf& leaf : entry.leaves) with.insert(leaf.rank);
  std::vector<std::int64_t> without;
  for (std::int64_t rank = 0; rank < states_.folder.world_size && !with.empty(); ++rank)
    if (!with.contains(rank)) without.push_back(rank);
  return without;
}

std::int64_t LocalState::part_on(const Target& target, std::int64_t rank) const {
  const Unit& unit = units_[target.unit];
  const FlatSegment& segment = unit.parameters[static_cast<std::size_t>(target.parameter)];
  const std::int64_t begin = rank * unit.shard_numel, end = begin + unit.shard_numel;
  return std::max<std::int64_t>(std::min(end, segment.end()) - std::max(begin, segment.begin), 0);
}

/// Ids 0, 1, .. by the record's own word.
bool LocalState::map_by_record(Optimizer& optimizer) {
  const auto listed = record_->optimizers.find(dotted(optimizer.prefix));
  if (listed == record_->optimizers.end()) return false;
  std::map<std::string, Target> known;
  for (const bool whole_units : {true, false})
    for (const Target& target : targets_in_order(whole_units, false)) {
      const Unit& unit = units_[target.unit];
      known.emplace(
          whole_units ? unit.name : unit.parameters[static_cast<std::size_t>(target.parameter)].fqn,
          target);
    }
  for (const std::int64_t id : optimizer.ids) {
    const bool has_name = id >= 0 && id < static_cast<std::int64_t>(listed->second.size());
    const auto target =
        has_name ? known.find(listed->second[static_cast<std::size_t>(id)]) : known.end();
    if (target == known.end())
      fail(Code::kCorrupt,
           fmt::format("the flat layout does not say which parameter id {} of optimizer \"{}\" is",
                       id, printable(listed->first)));
    optimizer.targets.emplace(id, target->second);
  }
  return true;
}

void LocalState::map_optimizer(Optimizer& optimizer) {
  if (map_by_record(optimizer)) return;
  std::size_t parameters = 0;
  for (const Unit& unit : units_) parameters += unit.parameters.size();
  const std::size_t ids = optimizer.ids.size();
  const bool whole_units = !orig_ && (ids == units_.size() || ids != parameters);
  const std::map<std::int64_t, std::int64_t> numels = stored_numels(optimizer, !whole_units);
  std::vector<std::optional<Shape>> shapes;
  for (const std::int64_t id : optimizer.ids) {
    const auto numel = numels.find(id);
    shapes.push_back(numel == numels.end() ? std::nullopt : std::optional(Shape{numel->second}));
  }
  // Optimizers mostly leave frozen modules out. A rank may have lost its state, or have none: then
  // what the others hold of each parameter is what must fit.
  const std::vector<std::int64_t> lost = ranks_without_state(optimizer);
  for (const auto& [trained_only, without_lost] :
       {std::pair{true, false}, {false, false}, {true, true}, {false, true}}) {
    const std::vector<Target> targets = targets_in_order(whole_units, trained_only);
    if (targets.size() < ids || (without_lost && (lost.empty() || whole_units))) continue;
    std::vector<Shape> candidates;
    for (const Target& target : targets) {
      const Unit& unit = units_[target.unit];
      std::int64_t numel = unit.shard_numel;
      if (!whole_units) numel = unit.parameters[static_cast<std::size_t>(target.parameter)].numel;
      if (without_lost)
        for (const std::int64_t rank : lost) numel -= part_on(target, rank);
      candidates.push_back(Shape{numel});
    }
    const IdMapping mapping = map_ids(shapes, optimizer.group_sizes, candidates);
    if (!mapping.complete) continue;
    if (without_lost) report_lost(optimizer, lost);
    for (std::size_t i = 0; i < ids; ++i)
      optimizer.targets.emplace(optimizer.ids[i],
                                targets[static_cast<std::size_t>(mapping.candidate[i])]);
    const bool in_order = targets.size() == ids && optimizer.group_sizes.size() == 1;
    if (!mapping.certain && !in_order)
      builder_.manifest().notes.push_back(
          {Finding::kUnsureOptimizer, Severity::kWarning,
           fmt::format("the ids of optimizer \"{}\" could mean other parameters of the same sizes, "
                       "too: \"optimizers\" in the flat layout would say which",
                       printable(dotted(optimizer.prefix))),
           "", dotted(optimizer.prefix)});
    return;
  }
  note_optimizer(optimizer, "do not fit the parameters; they stay ids");
}

void LocalState::report_lost(const Optimizer& optimizer, const std::vector<std::int64_t>& lost) {
  Findings findings(tolerate_, builder_.manifest().notes);
  for (const RankPart& part : states_.folder.parts)
    for (const std::int64_t rank : lost)
      if (const std::string& file = part.files[static_cast<std::size_t>(rank)]; !file.empty())
        findings.error(Finding::kLost,
                       fmt::format("optimizer \"{}\" has no state here, though rank {} holds parts "
                                   "of parameters whose other parts have",
                                   printable(dotted(optimizer.prefix)), rank),
                       file);
}

void LocalState::note_optimizer(const Optimizer& optimizer, std::string_view what) {
  builder_.manifest().notes.push_back(
      {Finding::kUnfittingIds, Severity::kWarning,
       fmt::format("the ids of optimizer \"{}\" {}", printable(dotted(optimizer.prefix)), what), "",
       ""});
}

}  // namespace tessera::rank_files

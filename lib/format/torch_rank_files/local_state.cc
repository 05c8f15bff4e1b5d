#include "lib/format/torch_rank_files/local_state.h"

#include <fmt/format.h>
#include <tessera/base/checked.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/state/optim_state.h>
#include <tessera/tensor/cast.h>

#include <algorithm>

#include "lib/format/torch_files/archive_source.h"
#include "lib/format/torch_rank_files/local_leaves.h"

namespace tessera::rank_files {
namespace {

/// Source: _FLAT_PARAM_PADDING_VALUE, torch/distributed/fsdp/_flat_param.py.
constexpr double kFlatParamFiller = 42;

/// ...param_groups.<i>.params
bool is_member_list(const Path& path) {
  return path.size() >= 3 && is_key(path.back(), "params") &&
         path[path.size() - 2].kind == PathItem::Kind::kIndex &&
         is_key(path[path.size() - 3], "param_groups");
}

std::optional<std::vector<std::int64_t>> ids_of(const Value& value) {
  if (value.kind() != Value::Kind::kList) return std::nullopt;
  std::vector<std::int64_t> ids;
  for (const Value& item : value.as_list()) {
    if (!item.is_int()) return std::nullopt;
    ids.push_back(item.as_int());
  }
  return ids;
}

}  // namespace

LocalState::LocalState(const RankStates& states, ArchiveManifestBuilder& builder,
                       ArchiveBytes& bytes, RankMerger& merger, Findings& findings)
    : states_(states), builder_(builder), bytes_(bytes), merger_(merger), findings_(findings) {
  find_units();
  find_optimizers();
  if (units_.empty()) find_flat_state();
}

void LocalState::find_units() {
  const std::int64_t world_size = states_.folder.world_size;
  for (const RankEntry& entry : states_.entries) {
    if (!entry.is_sharded() || entry.leaves.front().sharded->is_dtensor()) continue;
    const TensorSpec& spec = entry.leaves.front().sharded->spec;
    if (spec.shape.rank() != 1 || entry.path.empty() || !is_flat_name(entry.path.back().key))
      continue;
    check_ranks(entry);
    Unit unit;
    unit.entry = &entry;
    unit.prefix.assign(entry.path.begin(), entry.path.end() - 1);
    unit.name = entry.path.back().key;
    unit.dtype = spec.dtype;
    unit.numel = spec.shape.numel();
    unit.shard_numel = ceil_div(unit.numel, world_size);
    units_.push_back(std::move(unit));
  }
}

/// The optimizer's runs are placed by the files' names: those must be the ranks' own.
void LocalState::check_ranks(const RankEntry& entry) {
  const ShardedValue& first = *entry.leaves.front().sharded;
  for (const RankLeaf& leaf : entry.leaves) {
    const std::string& path = builder_.manifest().files.at(leaf.file).path;
    in_file(path, [&] {
      in_tensor(entry.name, [&] {
        if (!leaf.sharded || leaf.sharded->is_dtensor())
          fail(Code::kCorrupt, fmt::format("a flat parameter on rank {}, but not on rank {}",
                                           entry.leaves.front().rank, leaf.rank));
        if (leaf.sharded->spec != first.spec)
          fail(Code::kCorrupt,
               fmt::format("it is {} on rank {} and {} on rank {}", first.spec.to_string(),
                           entry.leaves.front().rank, leaf.sharded->spec.to_string(), leaf.rank));
      });
    });
    if (leaf.sharded->rank.value_or(leaf.rank) != leaf.rank && misnamed_.insert(leaf.file).second)
      findings_.error(Finding::kOtherRanksFile,
                      fmt::format("the file is named as rank {}'s, but rank {} saved it: give the "
                                  "ranks' files their own names back, the optimizer's state has "
                                  "no others",
                                  leaf.rank, *leaf.sharded->rank),
                      path);
  }
}

void LocalState::find_optimizers() {
  for (const RankEntry& entry : states_.entries) {
    if (!is_member_list(entry.path)) continue;
    const auto ids = ids_of(entry.leaves.front().value);
    if (!ids) continue;
    const Path prefix(entry.path.begin(), entry.path.end() - 3);
    auto found = std::ranges::find(optimizers_, prefix, &Optimizer::prefix);
    if (found == optimizers_.end())
      found = optimizers_.insert(found, Optimizer{prefix, {}, {}, {}});
    found->ids.insert(found->ids.end(), ids->begin(), ids->end());
    found->group_sizes.push_back(ids->size());
  }
}

void LocalState::name_parameters(const Directory& directory, const ReadOptions& options) {
  tolerate_ = options.tolerate_damage;
  if (const auto record = find_record(directory, options)) {
    if (state_alone_) add_units_of(*record);
    fit(*record);
  }
  if (!record_ && state_alone_)
    builder_.manifest().notes.push_back(
        {Finding::kUnnamedFlat, Severity::kWarning,
         "the optimizer's state is what torch.optim held on each rank, runs of FSDP1's flat "
         "parameters, and the files do not say which parameters those hold: name them with "
         "--flat-layout FILE",
         "", ""});
  else if (!record_)
    builder_.manifest().notes.push_back(
        {Finding::kUnnamedFlat, Severity::kWarning,
         fmt::format("the files do not say which parameters their {} flat parameter{} hold: name "
                     "them with --flat-layout FILE, or put {} or a full state dict into the folder",
                     units_.size(), units_.size() == 1 ? "" : "s", kFlatRecordFile),
         "", ""});
  find_slices();
  for (Optimizer& optimizer : optimizers_)
    if (record_) map_optimizer(optimizer);
}

void LocalState::fit(const FlatRecord& record) {
  FlatRecord fitted;
  fitted.order = record.order;
  fitted.optimizers = record.optimizers;
  for (Unit& unit : units_) {
    const FlatUnit* known = record.find(unit.name);
    // Releases before 2.0 call it flat_param.
    const std::size_t last = unit.name.rfind('.') + 1;
    const std::string other =
        unit.name.substr(0, last) +
        (unit.name.substr(last) == "flat_param" ? "_flat_param" : "flat_param");
    if (!known) known = record.find(other);
    if (!known)
      fail(Code::kCorrupt,
           fmt::format("the flat layout does not list \"{}\"", printable(unit.name)),
           "it is the layout of another model");
    unit.fitted = fit_unit(*known, unit.numel, states_.folder.world_size, unit.dtype);
    unit.parameters = unit.fitted->layout.segments();
    fitted.units.push_back({unit.name, known->parameters, unit.fitted->alignment});
    orig_ = orig_ || unit.fitted->alignment > 1 || unit.fitted->padded_total;
  }
  record_ = std::move(fitted);
}

void LocalState::find_slices() {
  std::map<std::string, std::pair<std::size_t, std::size_t>> names;
  for (std::size_t u = 0; u < units_.size(); ++u)
    for (std::size_t p = 0; p < units_[u].parameters.size(); ++p) {
      Path path = units_[u].prefix;
      path.push_back(key_item(units_[u].parameters[p].fqn));
      names.emplace(dotted(path), std::pair(u, p));
    }
  for (const RankEntry& entry : states_.entries)
    if (const auto found = names.find(entry.name); found != names.end() && !entry.is_sharded())
      slices_.insert(*found);
  find_tied_slices();
  orig_ = orig_ || !slices_.empty();
}

bool LocalState::add(const RankEntry& entry) {
  if (!present()) return false;
  for (const Unit& unit : units_)
    if (unit.entry == &entry) return add_unit(unit);
  if (const auto slice = slices_.find(entry.name); slice != slices_.end()) {
    const auto [unit, parameter] = slice->second;
    add_parameter(entry.path, units_[unit].dtype, units_[unit].parameters[parameter],
                  places_of(units_[unit]));
    return true;
  }
  for (const Optimizer& optimizer : optimizers_)
    if (starts_with(entry.path, optimizer.prefix) && add_optimizer(entry, optimizer)) return true;
  return false;
}

LocalState::Places LocalState::places_of(const Unit& unit) const {
  Shards shards;
  for (const RankLeaf& leaf : unit.entry->leaves)
    for (const LocalPiece& piece : leaf.sharded->pieces)
      shards.add(leaf, piece.tensor, piece.chunk.box.begin(0), piece.chunk.box.end(0));
  return Places(std::move(shards));
}

bool LocalState::add_unit(const Unit& unit) {
  if (!unit.fitted) return false;
  const Places places = places_of(unit);
  if (tolerate_) check_padding(unit, places, unit.entry->name, kFlatParamFiller);
  for (const FlatSegment& segment : unit.parameters) {
    Path path = unit.prefix;
    path.push_back(key_item(segment.fqn));
    if (!slices_.contains(dotted(path))) add_parameter(path, unit.dtype, segment, places);
  }
  return true;
}

void LocalState::add_parameter(const Path& path, DType dtype, const FlatSegment& segment,
                               const Places& places) {
  const std::vector<ArchivePiece> pieces =
      pieces_of(places.flat.cut(segment.begin, segment.end()), segment.shape,
                [&](const FlatRun& run) { return places.tensors[run.buffer]; });
  const std::uint32_t number = builder_.add_tensor(path, {dtype, segment.shape}, pieces);
  builder_.tensor(number).always_sharded = segment.shape.rank() > 0;
}

bool LocalState::add_optimizer(const RankEntry& entry, const Optimizer& optimizer) {
  if (is_member_list(entry.path)) return add_members(entry, optimizer);
  const auto id = state_id(entry.path, optimizer.prefix);
  if (!id) return false;
  const auto target = optimizer.targets.find(*id);
  if (target != optimizer.targets.end()) {
    add_state(entry, optimizer, target->second);
    return true;
  }
  if (!all_arrays(entry, bytes_)) return false;
  add_unnamed_state(entry);
  return true;
}

bool LocalState::add_members(const RankEntry& entry, const Optimizer& optimizer) {
  const auto ids = ids_of(entry.leaves.front().value);
  if (!ids || optimizer.targets.empty()) return false;
  ValueList names;
  for (const std::int64_t id : *ids) {
    const Target& target = optimizer.targets.at(id);
    const Unit& unit = units_[target.unit];
    for (std::size_t p = 0; p < unit.parameters.size(); ++p)
      if (target.parameter < 0 || static_cast<std::size_t>(target.parameter) == p)
        names.push_back(Value::string(unit.parameters[p].fqn));
  }
  builder_.add_value(entry.leaves.front().file, entry.path, Value::list(std::move(names)));
  return true;
}

LocalState::Places LocalState::state_places(const RankEntry& entry, const Target& target) const {
  const Unit& unit = units_[target.unit];
  Shards shards;
  for (const RankLeaf& leaf : entry.leaves) {
    std::int64_t begin = leaf.rank * unit.shard_numel, end = begin + unit.shard_numel;
    std::int64_t expected = unit.shard_numel;
    if (target.parameter >= 0) {
      const FlatSegment& segment = unit.parameters[static_cast<std::size_t>(target.parameter)];
      begin = std::max(begin, segment.begin);
      end = std::max(begin, std::min(end, segment.end()));
      expected = end - begin;
    }
    const std::int64_t stored = numel_of(leaf, bytes_);
    if (stored != expected)
      fail(Code::kCorrupt, fmt::format("rank {} holds {} elements of it, the flat layout gives {}",
                                       leaf.rank, stored, expected));
    if (begin < end) shards.add(leaf, leaf.value.tensor_index(), begin, end);
  }
  return Places(std::move(shards));
}

void LocalState::add_state(const RankEntry& entry, const Optimizer& optimizer,
                           const Target& target) {
  const Unit& unit = units_[target.unit];
  const bool arrays = all_arrays(entry, bytes_);
  const Places places = arrays ? in_tensor(entry.name, [&] { return state_places(entry, target); })
                               : Places(Shards{});
  if (arrays && target.parameter < 0 && tolerate_)
    check_padding(unit, places, entry.name, std::nullopt);
  for (std::size_t p = 0; p < unit.parameters.size(); ++p) {
    if (target.parameter >= 0 && static_cast<std::size_t>(target.parameter) != p) continue;
    Path path = entry.path;
    path[optimizer.prefix.size() + 1] = key_item(unit.parameters[p].fqn);
    if (!arrays) {
      merger_.add(entry, path);
      continue;
    }
    const RankLeaf& first = entry.leaves.front();
    const DType dtype = bytes_.tensor({first.file, first.value.tensor_index()}).dtype;
    add_parameter(path, dtype, unit.parameters[p], places);
  }
}

/// Padding of the weights is 42 with use_orig_params, else 0, that of the state 0; no optimizer
/// changes it. Anything else there is likely a parameter's: the layout is not this one's.
void LocalState::check_padding(const Unit& unit, const Places& places, const std::string& name,
                               std::optional<double> filler) {
  Findings findings(tolerate_, builder_.manifest().notes);
  for (const FlatRun& run : places.flat.runs()) {
    std::vector<FlatRange> content;
    for (const FlatPiece& piece : unit.fitted->layout.pieces_in(run.begin, run.end))
      content.push_back({piece.offset, piece.offset + piece.numel()});
    const TensorRef ref = places.tensors[run.buffer];
    note_used_padding(bytes_, findings, builder_.manifest().files.at(ref.file).path,
                      {.ref = ref, .content = std::move(content), .name = name, .filler = filler});
  }
}

/// One run per rank, end to end; of a flat parameter's size where it is certain.
void LocalState::add_unnamed_state(const RankEntry& entry) {
  if (!states_.missing_ranks.empty()) {
    Findings findings(tolerate_, builder_.manifest().notes);
    return findings.error(Finding::kLost,
                          fmt::format("lost: the file of rank {} may have held a run of it, and "
                                      "nothing else says how long it is",
                                      states_.missing_ranks.front()),
                          states_.missing.front(), entry.name);
  }
  std::int64_t total = 0;
  for (const RankLeaf& leaf : entry.leaves) total += numel_of(leaf, bytes_);
  const std::int64_t first = numel_of(entry.leaves.front(), bytes_);
  std::set<std::int64_t> sizes;
  for (const Unit& unit : units_)
    if (unit.shard_numel == first) sizes.insert(unit.numel);
  const std::int64_t numel = sizes.size() == 1 ? std::min(total, *sizes.begin()) : total;
  Shards shards;
  std::int64_t at = 0;
  for (const RankLeaf& leaf : entry.leaves) {
    const std::int64_t end = at + numel_of(leaf, bytes_);
    if (at < std::min(end, numel))
      shards.add(leaf, leaf.value.tensor_index(), at, std::min(end, numel));
    at = end;
  }
  const RankLeaf& leaf = entry.leaves.front();
  const DType dtype = bytes_.tensor({leaf.file, leaf.value.tensor_index()}).dtype;
  add_parameter(entry.path, dtype, {"all", Shape{numel}, 0, numel}, Places(std::move(shards)));
}

}  // namespace tessera::rank_files

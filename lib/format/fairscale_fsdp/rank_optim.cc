// Every rank's own optimizer.state_dict(): state keyed by an integer for each backing parameter,
// cut as that parameter's shards are. Gathering it here has none of the limits of
// gather_full_optim_state_dict: several groups, unflattened parameters, process groups of any size,
// states without tensors; and nothing that ranks disagree about goes unnoticed.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include <algorithm>
#include <set>

#include "lib/format/fairscale_fsdp/optim_sink.h"
#include "lib/format/fairscale_fsdp/rank_ids.h"
#include "lib/state/fields.h"

namespace tessera::fairscale {
namespace {

/// A leaf of one id's state, by rank; nullptr where a rank has none.
using ByRank = std::vector<const Value*>;

class RankOptimReader {
 public:
  explicit RankOptimReader(Checkpoint& checkpoint)
      : checkpoint_(checkpoint), sink_(checkpoint, !can_gather()) {}

  void run() {
    collect();
    if (!map_parameters()) return keep_as_it_is();
    compare_groups();
    for (const auto& [id, place] : parameters_) add_state(id, *place);
    add_groups();
    if (can_gather() && !checkpoint_.description->marks.ids_implied) add_maps();
    add_other_keys();
    checkpoint_.builder.manifest().provenance[std::string(kOptimizerKey)] = kRankOptimizers;
  }

 private:
  /// FairScale gathers only below a root that flattens.
  bool can_gather() const {
    return checkpoint_.places.empty() || checkpoint_.backing(checkpoint_.places[0]).flat;
  }

  void collect() {
    for (const RankState& rank : checkpoint_.ranks) {
      RankOptimizer& mine = ranks_.emplace_back();
      if (!rank.parts.optimizer) continue;
      mine.file = rank.parts.optimizer.file;
      mine.value = rank.parts.optimizer.value;
      for (const auto& [key, state] : mine.value->find("state")->as_dict())
        if (key.is_int() && state.is_dict()) mine.state.emplace(key.as_int(), &state);
    }
    reference_ = checkpoint_.first_rank;
    if (ranks_[reference_].value) return;
    // One rank alone has lost it: the others' state is not dropped for that.
    for (std::size_t r = 0; r < ranks_.size() && !ranks_[reference_].value; ++r)
      if (ranks_[r].value) reference_ = r;
    checkpoint_.findings.error(
        Finding::kLost,
        fmt::format("rank {} stored no optimizer, rank {} did", checkpoint_.first_rank, reference_),
        file_of(checkpoint_.first_rank));
  }
  std::string file_of(std::size_t rank) const {
    if (ranks_[rank].value) return checkpoint_.path_of(ranks_[rank].file);
    const auto& files = checkpoint_.ranks[rank].files;
    return files.empty() ? "" : files.front();
  }
  const RankOptimizer& reference() const { return ranks_[reference_]; }
  const ValueList& groups() const { return reference().value->find("param_groups")->as_list(); }

  bool map_parameters() {
    auto parameters = parameters_by_id(checkpoint_, reference_, reference());
    if (!parameters) return false;
    parameters_ = *std::move(parameters);
    by_id_.insert(parameters_.begin(), parameters_.end());
    return true;
  }
  /// Ids that fit no parameter: kept under their ranks, without names.
  void keep_as_it_is() {
    checkpoint_.findings.note(Finding::kDifferentValues, Severity::kWarning,
                              "the optimizer's ids do not match the sharded parameters; its state "
                              "is kept rank by rank",
                              checkpoint_.path_of(reference().file));
    std::vector<std::optional<Part>> values;
    for (const RankState& rank : checkpoint_.ranks)
      values.push_back(rank.parts.optimizer ? std::optional(rank.parts.optimizer) : std::nullopt);
    add_shared_value(checkpoint_, root_path("rank_optimizers"), values);
  }

  void compare_groups() {
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      if (!ranks_[r].value || r == reference_) continue;
      if (checkpoint_.bytes.same(reference().file, *reference().value->find("param_groups"),
                                 ranks_[r].file, *ranks_[r].value->find("param_groups")) ==
          ArchiveBytes::Answer::kDifferent)
        disagree(r, "param_groups", "their param_groups differ");
    }
  }
  void disagree(std::size_t rank, const std::string& name, const std::string& what) {
    checkpoint_.findings.error(Finding::kRanksDisagree,
                               fmt::format("ranks {} and {} disagree: {}", reference_, rank, what),
                               checkpoint_.path_of(ranks_[rank].file), name);
  }

  // State.

  const ArchiveTensor& tensor_of(std::size_t rank, const Value& value) const {
    return checkpoint_.bytes.tensor({ranks_[rank].file, value.tensor_index()});
  }
  TensorRef ref_of(std::size_t rank, const Value& value) const {
    return {ranks_[rank].file, value.tensor_index()};
  }
  const Value* leaf_of(std::size_t rank, std::int64_t id, const std::string& leaf) const {
    const auto found = ranks_[rank].state.find(id);
    return found == ranks_[rank].state.end() ? nullptr : found->second->find(leaf);
  }

  void add_state(std::int64_t id, const BackingPlace& place) {
    const Value* first = nullptr;
    for (const FlatRun& run : place.plan.places.runs())
      if (const auto found = ranks_[run.rank].state.find(id);
          !first && found != ranks_[run.rank].state.end())
        first = found->second;
    if (!first) return;  // never used: the optimizer made no state
    with_state_.insert(&place);
    const std::vector<PlacedParameter> parameters = placed_parameters(checkpoint_, place);
    std::vector<std::pair<std::string, ByRank>> leaves;
    for (const std::string& leaf : leaf_names(id, place))
      leaves.emplace_back(leaf, by_rank(id, leaf, place));
    for (const PlacedParameter& parameter : parameters) {
      sink_.begin(parameter.fqn);
      for (const auto& [leaf, values] : leaves) add_leaf(place, parameter, leaf, values);
      sink_.end();
    }
    for (const auto& [leaf, values] : leaves) checked_.erase(leaf);
    add_own(id, place, *first);
  }
  /// What any rank stored: the first one's order, what only others have follows.
  std::vector<std::string> leaf_names(std::int64_t id, const BackingPlace& place) const {
    std::vector<std::string> names;
    for (const FlatRun& run : place.plan.places.runs()) {
      const auto found = ranks_[run.rank].state.find(id);
      if (found == ranks_[run.rank].state.end()) continue;
      for (const auto& [key, value] : found->second->as_dict())
        if (key.is_string() && std::ranges::find(names, key.as_string()) == names.end())
          names.push_back(key.as_string());
    }
    return names;
  }
  ByRank by_rank(std::int64_t id, const std::string& leaf, const BackingPlace& place) {
    ByRank out(ranks_.size());
    for (const FlatRun& run : place.plan.places.runs()) {
      out[run.rank] = leaf_of(run.rank, id, leaf);
      if (!out[run.rank])
        checkpoint_.findings.error(
            Finding::kLost,
            fmt::format("rank {} stored no \"{}\" for it", run.rank, printable(leaf)),
            file_of(run.rank), place.key);
    }
    return out;
  }

  enum class Form { kSharded, kScalars, kTensors, kPlain };
  /// How ranks stored a leaf: as their shards of it, as a tensor without dims, as tensors of other
  /// shapes, or as something else.
  Form form_of(const BackingPlace& place, const ByRank& values) const {
    bool sharded = true, scalars = true;
    for (const FlatRun& run : place.plan.places.runs()) {
      const Value* value = values[run.rank];
      if (!value) continue;
      if (!value->is_tensor()) return Form::kPlain;
      const Shape& shape = tensor_of(run.rank, *value).shape;
      scalars = scalars && shape.rank() == 0;
      sharded = sharded && place.tensors[run.rank] &&
                shape == checkpoint_.bytes.tensor(*place.tensors[run.rank]).shape;
    }
    if (sharded && !scalars) return Form::kSharded;
    return scalars ? Form::kScalars : Form::kTensors;
  }

  void add_leaf(const BackingPlace& place, const PlacedParameter& parameter,
                const std::string& leaf, const ByRank& values) {
    const bool scalar_parameter = parameter.shape.rank() == 0 && !checkpoint_.backing(place).flat &&
                                  place.plan.whole && leaf != "step";
    switch (form_of(place, values)) {
      case Form::kSharded:
        return add_sharded(place, parameter, leaf, values);
      case Form::kScalars:
        if (scalar_parameter) return add_sharded(place, parameter, leaf, values);
        return leaf == "step" ? add_step(place, leaf, values) : add_tensors(place, leaf, values);
      case Form::kTensors:
        return add_tensors(place, leaf, values);
      case Form::kPlain:
        return add_plain(place, leaf, values);
    }
  }
  void add_sharded(const BackingPlace& place, const PlacedParameter& parameter,
                   const std::string& leaf, const ByRank& values) {
    std::vector<std::optional<TensorRef>> tensors(values.size());
    DType dtype = DType::kFloat32;
    for (const FlatRun& run : place.plan.places.runs()) {
      if (!values[run.rank]) continue;
      tensors[run.rank] = ref_of(run.rank, *values[run.rank]);
      dtype = tensor_of(run.rank, *values[run.rank]).dtype;
    }
    sink_.tensor(leaf, {dtype, parameter.shape}, pieces_of(place, parameter, tensors),
                 checkpoint_.ranks.size() > 1);
    // Once for all parameters of the shard.
    if (checkpoint_.findings.tolerate() && parameter.begin == 0 && !place.plan.whole)
      note_used_padding(checkpoint_, place, tensors, place.key + " " + leaf);
  }

  std::vector<TensorRef> refs(const BackingPlace& place, const ByRank& values) const {
    std::vector<TensorRef> out;
    for (const FlatRun& run : place.plan.places.runs())
      if (values[run.rank] && values[run.rank]->is_tensor())
        out.push_back(ref_of(run.rank, *values[run.rank]));
    return out;
  }
  bool all_same(const std::vector<TensorRef>& of) {
    return std::ranges::all_of(of, [&](TensorRef ref) {
      return checkpoint_.bytes.same(of[0], ref) == ArchiveBytes::Answer::kEqual;
    });
  }
  /// A counter is one number for all ranks.
  void add_step(const BackingPlace& place, const std::string& leaf, const ByRank& values) {
    const std::vector<TensorRef> steps = refs(place, values);
    if (checked_.emplace(leaf, Value()).second) {
      const std::optional<Value> number = checkpoint_.bytes.number(steps[0]);
      if (number) checked_[leaf] = *number;
      for (const FlatRun& run : place.plan.places.runs()) {
        if (!values[run.rank]) continue;
        const TensorRef ref = ref_of(run.rank, *values[run.rank]);
        if (checkpoint_.bytes.same(steps[0], ref) == ArchiveBytes::Answer::kEqual) continue;
        const std::optional<Value> other = checkpoint_.bytes.number(ref);
        disagree(run.rank, place.key,
                 fmt::format("step {} against {}", text_of(number), text_of(other)));
        break;
      }
    }
    if (checked_[leaf].is_none()) return sink_.whole(leaf, steps[0]);
    sink_.value(leaf, steps[0].file, checked_[leaf]);
  }
  static std::string text_of(const std::optional<Value>& number) {
    return number && number->is_number() ? fmt::format("{}", number->as_real()) : "unknown";
  }
  /// Equal on all ranks: one. Else every rank's, in a list, as FairScale gathers them.
  void add_tensors(const BackingPlace& place, const std::string& leaf, const ByRank& values) {
    const std::vector<TensorRef> of = refs(place, values);
    all_same(of) ? sink_.whole(leaf, of[0]) : sink_.list(leaf, of);
  }
  void add_plain(const BackingPlace& place, const std::string& leaf, const ByRank& values) {
    std::size_t first = values.size();
    for (const FlatRun& run : place.plan.places.runs()) {
      if (!values[run.rank]) continue;
      if (first == values.size()) first = run.rank;
      if (checkpoint_.bytes.same(ranks_[first].file, *values[first], ranks_[run.rank].file,
                                 *values[run.rank]) != ArchiveBytes::Answer::kDifferent)
        continue;
      disagree(run.rank, place.key, fmt::format("\"{}\" has different values", printable(leaf)));
      break;
    }
    if (first < values.size()) sink_.value(leaf, ranks_[first].file, *values[first]);
  }

  /// What ranks outside the group hold of their own, unless it is the same.
  void add_own(std::int64_t id, const BackingPlace& place, const Value& like) {
    for (const std::size_t r : place.plan.outside) {
      const auto state = ranks_[r].state.find(id);
      if (state == ranks_[r].state.end()) continue;
      const std::size_t first = place.plan.places.runs()[0].rank;
      const auto mine = ranks_[first].state.find(id);
      if (mine != ranks_[first].state.end() &&
          checkpoint_.bytes.same(ranks_[first].file, *mine->second, ranks_[r].file,
                                 *state->second) == ArchiveBytes::Answer::kEqual)
        continue;
      ValueDict leaves;
      for (const auto& [key, value] : state->second->as_dict())
        if (key.is_string() && like.find(key.as_string())) leaves.emplace_back(key, own(r, value));
      checkpoint_.own[r].optimizer.emplace_back(Value::string(place.key),
                                                Value::dict(std::move(leaves)));
    }
  }
  Value own(std::size_t rank, const Value& value) {
    if (!value.is_tensor())
      return embed_all(checkpoint_, own_state_name(rank), ranks_[rank].file, value);
    const TensorRef ref = ref_of(rank, value);
    if (tensor_of(rank, value).shape.rank() == 0)
      if (const auto number = checkpoint_.bytes.number(ref)) return *number;
    return embed(checkpoint_, own_state_name(rank), ref);
  }

  // Groups and the rest.

  void add_groups() {
    std::int64_t index = 0;
    for (const Value& group : groups()) {
      std::vector<std::string> members;
      for (const Value& id : group.find("params")->as_list())
        for (const PlacedParameter& p : placed_parameters(checkpoint_, *by_id_.at(id.as_int())))
          members.push_back(p.fqn);
      sink_.group(index++, reference().file, group, members);
    }
  }
  /// What gather_full_optim_state_dict adds: the optimizer's id of every parameter in order.
  void add_maps() {
    std::map<const BackingPlace*, std::int64_t> id_of;
    for (const auto& [id, place] : parameters_) id_of.emplace(place, id);
    ValueDict map;
    ValueList uncollected;
    std::size_t next = 0;
    for (const BackingPlace& place : checkpoint_.places) {
      const auto id = id_of.find(&place);
      const bool state = with_state_.contains(&place) && id != id_of.end();
      for (std::size_t i = 0; i < checkpoint_.backing(place).parameters.size(); ++i)
        map.emplace_back(Value::string(std::to_string(next++)),
                         state ? Value::integer(id->second) : Value());
      if (state && checkpoint_.wrapper(place).no_broadcast)
        uncollected.push_back(Value::integer(id->second));
    }
    sink_.entry(below(sink_.root(), "param_id_map"), Value::dict(std::move(map)));
    sink_.entry(below(sink_.root(), "uncollected_local_ids"), Value::list(std::move(uncollected)));
  }
  /// loss_scale and the like. `num_padded`, of early releases, is recomputed.
  void add_other_keys() {
    for (const auto& [key, value] : reference().value->as_dict()) {
      if (!key.is_string() || key.as_string() == "state" || key.as_string() == "param_groups" ||
          key.as_string() == "num_padded")
        continue;
      std::vector<std::optional<Part>> values(ranks_.size());
      for (std::size_t r = 0; r < ranks_.size(); ++r)
        if (ranks_[r].value)
          if (const Value* mine = ranks_[r].value->find(key.as_string()))
            values[r] = Part{mine, ranks_[r].file, {}};
      add_shared_value(checkpoint_, below(sink_.root(), key.as_string()), values);
    }
  }

  Checkpoint& checkpoint_;
  OptimSink sink_;
  std::vector<RankOptimizer> ranks_;
  std::size_t reference_ = 0;
  std::vector<std::pair<std::int64_t, const BackingPlace*>> parameters_;  // in the groups' order
  std::map<std::int64_t, const BackingPlace*> by_id_;
  std::set<const BackingPlace*> with_state_;
  std::map<std::string, Value> checked_;  // steps of the id that is being added
};

}  // namespace

void read_rank_optimizers(Checkpoint& checkpoint) { RankOptimReader(checkpoint).run(); }

}  // namespace tessera::fairscale

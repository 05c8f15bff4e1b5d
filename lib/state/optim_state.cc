#include <fmt/format.h>
#include <fmt/ranges.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/state/optim_state.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "lib/state/id_answer.h"
#include "lib/state/known_optimizers.h"
#include "lib/state/role_names.h"
#include "lib/state/same_bytes.h"

namespace tessera {
namespace {

StepRef step_of(const Value& value) {
  StepRef step;
  if (value.is_tensor()) step.tensor = value.tensor_index();
  if (value.is_number()) step.value = value.as_real();
  return step;
}

bool has_leaf(const OptimState& optim, std::string_view leaf) {
  return std::ranges::any_of(optim.parameters,
                             [&](const OptimParameter& p) { return p.find(leaf) != nullptr; });
}

/// DeepSpeed's Muon marks its groups, and hands the others to Adam.
std::string muon_kind(const OptimState& optim) {
  std::size_t muon = 0;
  for (const OptimGroup& group : optim.groups)
    if (const Value* use = group.find("use_muon"); use && use->kind() == Value::Kind::kBool)
      muon += use->as_bool();
  if (muon == 0) return "";
  return muon == optim.groups.size() ? "Muon" : "Muon, with AdamW for other groups";
}

/// AdamW differs from Adam by `decoupled_weight_decay` (2.7 and newer write it); without it the two
/// keep the same state.
std::string adam_kind(const OptimState& optim) {
  const std::string amsgrad = has_leaf(optim, "max_exp_avg_sq") ? " with amsgrad" : "";
  for (const OptimGroup& group : optim.groups)
    if (const Value* decoupled = group.find("decoupled_weight_decay");
        decoupled && decoupled->kind() == Value::Kind::kBool)
      return (decoupled->as_bool() ? "AdamW" : "Adam") + amsgrad;
  return "Adam or AdamW" + amsgrad;
}

/// AdEMAMix among the optimizers of bitsandbytes, whose groups have the same options.
bool has_three_betas(const OptimState& optim) {
  return std::ranges::any_of(optim.groups, [](const OptimGroup& group) {
    const Value* betas = group.find("betas");
    const bool several = betas != nullptr && (betas->kind() == Value::Kind::kTuple ||
                                              betas->kind() == Value::Kind::kList);
    return several && betas->as_list().size() == 3;
  });
}

void recognize(OptimState& optim) {
  std::set<std::string, std::less<>> leaves, options;
  for (const OptimParameter& p : optim.parameters)
    for (const OptimLeaf& leaf : p.leaves) leaves.insert(leaf.name);
  for (const OptimGroup& group : optim.groups)
    for (const auto& [key, value] : group.options)
      if (key.is_string()) options.insert(key.as_string());
  if (has_three_betas(optim)) options.insert("three_betas");
  optim.known = recognize_optimizer(leaves, options);
  optim.kind = optim.known == nullptr ? "unknown" : std::string(optim.known->name);
  if (optim.kind == "Adam") optim.kind = adam_kind(optim);
  if (std::string muon = muon_kind(optim); !muon.empty()) optim.kind = std::move(muon);
}

class Canonical {
 public:
  Canonical(const Manifest& manifest, const Roles& roles, std::size_t root, GivenWeights& given,
            std::set<std::uint32_t>& listed_by_any)
      : manifest_(manifest),
        roles_(roles),
        root_(static_cast<std::int32_t>(root)),
        given_(given),
        listed_by_any_(listed_by_any),
        equal_tensors_(manifest) {
    out_.root = roles.optimizers[root].name;
    out_.dialect = roles.optimizers[root].dialect;
  }

  OptimState make() {
    collect_weights();
    collect_state();
    out_.dialect == OptimDialect::kFlat ? collect_flat_groups() : collect_groups();
    recognize(out_);
    if (out_.dialect == OptimDialect::kById) map_to_weights();
    attach_groups();
    find_unlisted();
    return std::move(out_);
  }
  /// Parameters that no group lists.
  const std::vector<OptimWeight>& unlisted() const { return unlisted_; }

 private:
  /// Those of the model that the optimizer names, where there are several.
  void collect_weights() {
    const OptimizerRoot& optimizer = roles_.optimizers[static_cast<std::size_t>(root_)];
    const bool one_of_many = optimizer.model >= 0 && roles_.model_roots.size() > 1;
    const std::string model =
        one_of_many ? roles_.model_roots[static_cast<std::size_t>(optimizer.model)] : "";
    for (std::size_t i = 0; i < roles_.entries.size(); ++i) {
      const StateEntry& entry = manifest_.state.entries[i];
      if (roles_.entries[i].role != Role::kModel || !entry.value.is_tensor()) continue;
      if (!model.empty() && !entry.name.starts_with(model + ".")) continue;
      weights_.push_back({roles_.entries[i].fqn, i, entry.value.tensor_index()});
    }
    index_weights();
    if (!optimizer.model_certain)
      issue(Finding::kAmbiguousIds, Severity::kInfo, "",
            fmt::format("its names are those of several models ({}): taken to be those of \"{}\"",
                        fmt::join(roles_.model_roots, ", "), printable(model)));
  }

  /// An optimizer of several models may have parameters of one name: these go by where they stand.
  void name_apart() {
    std::map<std::string_view, std::size_t> count;
    for (const OptimWeight& weight : weights_) ++count[weight.fqn];
    if (count.size() == weights_.size()) return;
    std::vector<OptimWeight> apart = weights_;
    for (OptimWeight& weight : apart)
      if (count.at(weight.fqn) > 1) weight.fqn = manifest_.state.entries[weight.entry].name;
    weights_ = std::move(apart);
  }

  void index_weights() {
    by_name_.clear();
    for (const OptimWeight& weight : weights_) by_name_.emplace(weight.fqn, weight.tensor);
  }

  OptimParameter& parameter(const std::string& key) {
    const auto [found, is_new] = index_.try_emplace(key, out_.parameters.size());
    if (is_new) {
      OptimParameter fresh;
      fresh.fqn = fresh.stored_key = key;
      if (const auto weight = by_name_.find(key); weight != by_name_.end())
        fresh.weight = weight->second;
      out_.parameters.push_back(std::move(fresh));
    }
    return out_.parameters[found->second];
  }

  void collect_state() {
    for (std::size_t i = 0; i < roles_.entries.size(); ++i) {
      const EntryRole& role = roles_.entries[i];
      if (role.role != Role::kOptimState || role.root != root_) continue;
      const Value& value = manifest_.state.entries[i].value;
      OptimParameter& owner = parameter(role.fqn);
      owner.leaves.push_back({role.leaf, i, value.is_tensor() ? value.tensor_index() : kNoTensor});
      if (role.leaf == "step") owner.own_step = step_of(value);
    }
  }

  OptimGroup& group(std::int64_t index) {
    for (OptimGroup& known : out_.groups)
      if (known.index == index) return known;
    out_.groups.push_back({.index = index, .stored_members = {}, .members = {}, .options = {}});
    return out_.groups.back();
  }

  void add_option(OptimGroup& to, const std::string& key, const Value& value) {
    if (key != "params") {
      to.options.emplace_back(Value::string(key), value);
      return;
    }
    if (value.kind() != Value::Kind::kList && value.kind() != Value::Kind::kTuple) return;
    for (const Value& member : value.as_list()) {
      if (member.is_string()) to.stored_members.push_back(member.as_string());
      if (member.is_int()) to.stored_members.push_back(std::to_string(member.as_int()));
    }
  }

  void collect_groups() {
    for (std::size_t i = 0; i < roles_.entries.size(); ++i) {
      const EntryRole& role = roles_.entries[i];
      if (role.role != Role::kOptimGroup || role.root != root_) continue;
      const Value& value = manifest_.state.entries[i].value;
      if (role.group >= 0) {
        add_option(group(role.group), role.leaf, value);
      } else if (value.kind() == Value::Kind::kList) {
        std::int64_t index = 0;
        for (const Value& item : value.as_list()) {
          OptimGroup& made = group(index++);
          if (!item.is_dict()) continue;
          for (const auto& [key, option] : item.as_dict())
            if (key.is_string()) add_option(made, key.as_string(), option);
        }
      }
    }
  }

  /// Options are repeated for every FQN: parameters with equal options are one group again.
  void collect_flat_groups() {
    struct Options {
      ValueDict stored, compared;
    };
    std::vector<std::string> order;
    std::map<std::string, Options> options;
    for (std::size_t i = 0; i < roles_.entries.size(); ++i) {
      const EntryRole& role = roles_.entries[i];
      if (role.role != Role::kOptimGroup || role.root != root_) continue;
      if (!options.contains(role.fqn)) order.push_back(role.fqn);
      const Value& value = manifest_.state.entries[i].value;
      Options& of = options[role.fqn];
      of.stored.emplace_back(Value::string(role.leaf), value);
      of.compared.emplace_back(Value::string(role.leaf), equal_tensors_(value));
    }
    std::vector<const ValueDict*> compared;  // of each group
    for (const std::string& fqn : order) {
      Options& of = options[fqn];
      const auto found =
          std::ranges::find_if(compared, [&](const ValueDict* d) { return *d == of.compared; });
      const auto at = static_cast<std::size_t>(found - compared.begin());
      if (found == compared.end()) {
        compared.push_back(&of.compared);
        out_.groups.push_back({static_cast<std::int64_t>(at), {}, {}, std::move(of.stored)});
      }
      for (std::string& member : members_by(fqn))
        out_.groups[at].stored_members.push_back(std::move(member));
    }
  }

  /// Whose options those of `fqn` are. Megatron-FSDP cuts a gated matrix and its state in halves,
  /// not its options.
  std::vector<std::string> members_by(const std::string& fqn) const {
    if (!index_.contains(fqn) && index_.contains(fqn + "_w") && index_.contains(fqn + "_v"))
      return {fqn + "_w", fqn + "_v"};
    return {fqn};
  }

  /// Shape that an id's parameter must have.
  std::optional<Shape> state_shape(const std::string& key) const {
    const auto found = index_.find(key);
    if (found == index_.end()) return std::nullopt;
    return shape_by_state(manifest_, out_, out_.parameters[found->second]);
  }

  /// Keys in the order of the groups; without groups, as stored.
  std::vector<std::string> ordered_keys(std::vector<std::size_t>& sizes) const {
    std::vector<std::string> keys;
    for (const OptimGroup& listed : out_.groups) {
      keys.insert(keys.end(), listed.stored_members.begin(), listed.stored_members.end());
      sizes.push_back(listed.stored_members.size());
    }
    if (!keys.empty()) return keys;
    for (const OptimParameter& known : out_.parameters) keys.push_back(known.stored_key);
    sizes = {keys.size()};
    return keys;
  }

  void map_to_weights() {
    IdShapes ids;
    const std::vector<std::string> keys = ordered_keys(ids.group_sizes);
    if (map_by_names(keys)) return;
    for (const std::string& key : keys) ids.shapes.push_back(state_shape(key));
    ids.sure = out_.known != nullptr;
    const IdAnswer answer = find_parameters(manifest_, roles_, root_, weights_, ids, given_);
    if (!answer.note.empty()) issue(Finding::kAmbiguousIds, Severity::kInfo, "", answer.note);
    weights_ = answer.weights;
    name_apart();
    index_weights();
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const auto at = answer.mapping.candidate[i];
      if (at >= 0) {
        map_to(keys[i], weights_[static_cast<std::size_t>(at)].fqn, answer.mapping.certain);
        continue;
      }
      parameter(keys[i]);
      const bool said = !answer.undecided.empty() && answer.undecided[i];
      if (!weights_.empty() && !said)
        issue(Finding::kUnmappedId, Severity::kWarning, keys[i],
              fmt::format("id {} fits no parameter of the model by order and shape", keys[i]));
    }
    if (answer.mapping.complete && !answer.mapping.certain && answer.note.empty())
      issue(Finding::kAmbiguousIds, Severity::kInfo, "",
            "names of integer ids are inferred by order; shapes allow another answer");
  }

  void map_to(const std::string& key, const std::string& fqn, bool certain) {
    OptimParameter& owner = parameter(key);
    owner.fqn = fqn;
    if (const auto weight = by_name_.find(fqn); weight != by_name_.end())
      owner.weight = weight->second;
    owner.inferred = true;
    owner.certain = certain;
    if (owner.weight != kNoTensor) given_.tensors.insert(owner.weight);
    given_.certain = given_.certain && certain;
  }

  /// Optimizers made of named parameters say the names (`param_names`), in the order of the ids.
  /// Taken where they name every id and no shape contradicts.
  bool map_by_names(const std::vector<std::string>& keys) {
    std::vector<std::string> names;
    for (const OptimGroup& listed : out_.groups) {
      const Value* option = listed.find("param_names");
      if (option == nullptr || option->kind() != Value::Kind::kList) return false;
      for (const Value& name : option->as_list())
        if (name.is_string()) names.push_back(name.as_string());
    }
    if (names.empty() || names.size() != keys.size()) return false;
    if (std::set<std::string>(names.begin(), names.end()).size() != names.size()) return false;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const auto weight = by_name_.find(names[i]);
      if (weight == by_name_.end() && !by_name_.empty()) return false;
      if (weight != by_name_.end() &&
          !may_be_state_of(keys[i], manifest_.tensors[weight->second].spec.shape))
        return false;
    }
    for (std::size_t i = 0; i < keys.size(); ++i) map_to(keys[i], names[i], true);
    return true;
  }

  /// State of this shape, of none, or with a leaf of it beside larger ones (a preconditioner).
  bool may_be_state_of(const std::string& key, const Shape& weight) const {
    const auto shape = state_shape(key);
    if (!shape || *shape == weight) return true;
    const auto& leaves = out_.parameters[index_.at(key)].leaves;
    return std::ranges::any_of(leaves, [&](const OptimLeaf& leaf) {
      return leaf.tensor != kNoTensor && manifest_.tensors[leaf.tensor].spec.shape == weight;
    });
  }

  void attach_groups() {
    std::set<std::string> seen;
    for (OptimGroup& listed : out_.groups) {
      for (const std::string& key : listed.stored_members) {
        if (!seen.insert(key).second) {
          issue(
              Finding::kDuplicateMember, Severity::kError, key,
              fmt::format("\"{}\" is listed in more than one place of the groups", printable(key)));
          continue;
        }
        OptimParameter& owner = parameter(key);
        const bool known = owner.weight != kNoTensor || !owner.leaves.empty() || weights_.empty();
        if (!known && out_.dialect != OptimDialect::kById)
          issue(Finding::kUnknownMember, Severity::kError, key,
                fmt::format("group {} lists \"{}\", which the model does not have", listed.index,
                            printable(key)));
        owner.group = listed.index;
        if (const Value* step = listed.find("step")) owner.group_step = step_of(*step);
        listed.members.push_back(owner.fqn);
      }
    }
    std::ranges::stable_sort(out_.parameters, [](const OptimParameter& a, const OptimParameter& b) {
      return (a.group < 0) < (b.group < 0);  // listed ones first, then the rest as stored
    });
  }

  void find_unlisted() {
    if (out_.groups.empty()) return;
    std::set<std::string> listed;
    for (const OptimGroup& g : out_.groups) listed.insert(g.members.begin(), g.members.end());
    for (const OptimWeight& weight : weights_) {
      if (listed.contains(weight.fqn))
        listed_by_any_.insert(weight.tensor);
      else if (manifest_.tensors[weight.tensor].kind == TensorKind::kParam)
        unlisted_.push_back(weight);
    }
  }

  void issue(Finding code, Severity severity, std::string of, std::string message) {
    out_.issues.push_back({code, severity, std::move(of), std::move(message)});
  }

  const Manifest& manifest_;
  const Roles& roles_;
  std::int32_t root_;
  GivenWeights& given_;
  std::set<std::uint32_t>& listed_by_any_;
  EqualTensors equal_tensors_;
  std::vector<OptimWeight> unlisted_;
  OptimState out_;
  std::vector<OptimWeight> weights_;  // as stored
  std::map<std::string, std::uint32_t> by_name_;
  std::map<std::string, std::size_t> index_;
};

}  // namespace

std::string_view step_origin_name(StepOrigin origin) {
  switch (origin) {
    case StepOrigin::kNone:
      return "none";
    case StepOrigin::kParameter:
      return "parameter";
    case StepOrigin::kGroup:
      return "group";
    case StepOrigin::kBoth:
      return "both";
  }
  return "none";
}

StepOrigin OptimParameter::step_origin() const {
  if (own_step.known()) return group_step.known() ? StepOrigin::kBoth : StepOrigin::kParameter;
  return group_step.known() ? StepOrigin::kGroup : StepOrigin::kNone;
}

const OptimLeaf* OptimParameter::find(std::string_view leaf) const {
  const auto found = std::ranges::find(leaves, leaf, &OptimLeaf::name);
  return found == leaves.end() ? nullptr : &*found;
}

const Value* OptimGroup::find(std::string_view option) const {
  for (const auto& [key, value] : options)
    if (key.is_string() && key.as_string() == option) return &value;
  return nullptr;
}

std::string_view leaf_cut_name(LeafCut cut) {
  switch (cut) {
    case LeafCut::kElementwise:
      return "elementwise";
    case LeafCut::kPerRow:
      return "per row";
    case LeafCut::kOne:
      return "one";
    case LeafCut::kFactored:
      return "factored";
    case LeafCut::kBlocks:
      return "blocks";
    case LeafCut::kOpaque:
      return "opaque";
  }
  return "opaque";
}

LeafCut OptimState::cut_of(const OptimParameter& parameter, std::string_view leaf) const {
  if (known == nullptr) return LeafCut::kElementwise;
  const LeafCut cut = cut_of_leaf(*known, leaf);
  // Moments of a projected gradient have the projection's shape.
  const bool projected = cut == LeafCut::kElementwise && parameter.find("projector") != nullptr;
  return projected ? LeafCut::kOpaque : cut;
}

const OptimParameter* OptimState::find(std::string_view fqn) const {
  const auto found = std::ranges::find(parameters, fqn, &OptimParameter::fqn);
  return found == parameters.end() ? nullptr : &*found;
}

std::vector<OptimState> canonical_optim_states(const Manifest& manifest, const Roles& roles) {
  std::vector<OptimState> states;
  std::vector<std::vector<OptimWeight>> unlisted;
  GivenWeights given;
  std::set<std::uint32_t> listed;
  for (std::size_t i = 0; i < roles.optimizers.size(); ++i) {
    Canonical canonical(manifest, roles, i, given, listed);
    states.push_back(canonical.make());
    unlisted.push_back(canonical.unlisted());
  }
  // An id without a name may be any of them.
  if (std::ranges::any_of(states, has_unnamed_ids)) return states;
  for (std::size_t i = 0; i < states.size(); ++i)
    for (const OptimWeight& weight : unlisted[i])  // said once, of optimizers that share a model
      if (listed.insert(weight.tensor).second) states[i].unlisted_weights.push_back(weight.fqn);
  return states;
}

}  // namespace tessera

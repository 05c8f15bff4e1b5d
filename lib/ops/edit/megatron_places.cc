#include "lib/ops/edit/megatron_places.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/state/manifest_edit.h>
#include <tessera/state/optim_edit.h>
#include <tessera/state/optim_state.h>
#include <tessera/state/roles.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "lib/state/role_names.h"

namespace tessera {
namespace {

constexpr std::string_view kWrapper = "module.";
constexpr std::string_view kWrappers = "module.module.module.";
constexpr std::string_view kFirst = "_w", kSecond = "_v";  // halves of a gated matrix

/// One of a gated matrix' halves, or what would be one.
bool is_half(std::string_view fqn) {
  return fqn.find("linear_fc1.") != fqn.npos && (fqn.ends_with(kFirst) || fqn.ends_with(kSecond));
}

/// A group of expert-parallel ranks alone: Megatron chains an optimizer for these to that of all others.
bool is_expert_group(const OptimGroup& group) {
  const Value* flag = group.find("is_expert_parallel");
  return flag != nullptr && flag->kind() == Value::Kind::kBool && flag->as_bool();
}

std::optional<double> real_option(const OptimGroup& group, std::string_view name) {
  const Value* value = group.find(name);
  if (value == nullptr || !value->is_number()) return std::nullopt;
  return value->as_real();
}

class Mover {
 public:
  Mover(Manifest& manifest, MegatronPlaces places)
      : manifest_(manifest), to_fsdp_(places == MegatronPlaces::kFsdp) {}

  std::vector<Note> run() {
    if (to_fsdp_) masters_become_weights();
    check_halves();
    roles_ = find_roles(manifest_.state);
    states_ = canonical_optim_states(manifest_, roles_);
    check_one();
    for (const OptimState& optim : states_)
      require_names(manifest_, optim, "leave the optimizer out with --only model");
    for (const OptimState& optim : states_)
      for (const OptimParameter& p : optim.parameters) fqns_[p.stored_key] = p.fqn;
    std::vector<StateEntry> entries;
    for (std::size_t i = 0; i < roles_.entries.size(); ++i) move(i, entries);
    manifest_.state.entries = std::move(entries);
    std::erase_if(manifest_.state.containers, [&](const ContainerNote& note) {
      return std::ranges::any_of(moved_, [&](const std::string& name) {
        return (dotted(note.path) + ".").starts_with(name + ".");
      });
    });
    to_fsdp_ ? add_options() : add_groups();
    if (!to_fsdp_) add_masters();
    check_unique(manifest_.state, Code::kUnsupported);
    return std::move(notes_);
  }

 private:
  const Shape* shape_of(const std::string& fqn) const {
    const auto found = weights_.find(fqn);
    return found == weights_.end() ? nullptr : &manifest_.tensors[found->second].spec.shape;
  }

  /// Megatron-FSDP keeps a gated matrix in halves, and only that: sizes show which one is.
  void check_halves() {
    const Roles roles = find_roles(manifest_.state);
    for (std::size_t i = 0; i < roles.entries.size(); ++i) {
      const Value& value = manifest_.state.entries[i].value;
      if (roles.entries[i].role == Role::kModel && value.is_tensor())
        weights_.emplace(roles.entries[i].fqn, value.tensor_index());
    }
    for (const auto& [fqn, tensor] : weights_) check_half(fqn);
  }

  void check_half(const std::string& fqn) const {
    constexpr std::string_view kKey = "linear_fc1.weight";
    const std::size_t at = fqn.rfind(kKey);
    if (!to_fsdp_ || at == std::string::npos) return;
    std::string second = fqn;
    if (is_half(second)) second.resize(second.size() - kFirst.size());
    second.replace(at, kKey.size(), "linear_fc2.weight");
    const Shape* rows = shape_of(fqn);
    const Shape* columns = shape_of(second);
    if (rows == nullptr || columns == nullptr || rows->rank() != 2 || columns->rank() != 2) return;
    const std::int64_t ffn = (*columns)[1], found = (*rows)[0];
    if (is_half(fqn) ? found == ffn : found != 2 * ffn) return;
    fail(Code::kInvalidArgument,
         fmt::format("\"{}\" has {} rows, and \"{}\" {} columns: {}", printable(fqn), found,
                     printable(second), ffn,
                     is_half(fqn) ? "it is half of a matrix that is not gated"
                                  : "a gated matrix, which Megatron-FSDP keeps in halves"),
         is_half(fqn) ? "--rules megatron-fsdp:megatron-dist-layers, for models without SwiGLU"
                      : "--rules megatron-fsdp");
  }

  /// The weights of Megatron-FSDP's files are the fp32 ones.
  void masters_become_weights() {
    const auto is_master = [](const OptimLeaf& leaf) {
      return leaf.tensor != kNoTensor && is_master_leaf(leaf.name);
    };
    std::vector<bool> keep(manifest_.state.entries.size(), true);
    for (const OptimState& optim : canonical_optim_states(manifest_, find_roles(manifest_.state)))
      for (const OptimParameter& p : optim.parameters)
        for (const OptimLeaf& leaf : p.leaves)
          if (is_master(leaf) && p.weight != kNoTensor) keep[leaf.entry] = false;
    if (std::ranges::find(keep, false) == keep.end()) return;
    notes_ = prefer_masters(manifest_);
    const std::size_t before = manifest_.left_out.size();
    keep_entries(manifest_, keep);
    for (std::size_t i = before; i < manifest_.left_out.size(); ++i)
      manifest_.left_out[i].reason = "it is the weight itself in Megatron-FSDP's form";
  }

  void check_one() const {
    if (roles_.model_roots.size() > 1)
      fail(Code::kUnsupported, "there are several models; Megatron's formats hold one",
           "choose one with --root");
    const auto with_state = std::ranges::count_if(states_, [](const OptimState& optim) {
      return std::ranges::any_of(optim.parameters,
                                 [](const OptimParameter& p) { return !p.leaves.empty(); });
    });
    if (with_state > 1)
      fail(Code::kUnsupported, "there are several optimizers; Megatron's formats hold one",
           "leave them out with --only model");
  }

  std::string fqn_of(const EntryRole& role) const {
    const auto found = fqns_.find(role.fqn);
    return found == fqns_.end() ? std::string(role.fqn) : found->second;
  }

  void leave_out(const StateEntry& entry, std::string reason) {
    LeftOut out;
    out.name = entry.name;
    out.reason = std::move(reason);
    manifest_.left_out.push_back(std::move(out));
  }

  void move(std::size_t i, std::vector<StateEntry>& entries) {
    StateEntry& entry = manifest_.state.entries[i];
    const EntryRole& role = roles_.entries[i];
    switch (role.role) {
      case Role::kModel:
        place(entry, to_fsdp_ ? Path{key_item("model"), key_item(std::string(kWrapper) + role.fqn)}
                              : Path{key_item(role.fqn)});
        break;
      case Role::kOptimState:
        place(entry, state_path(fqn_of(role), role.leaf));
        break;
      case Role::kOptimGroup:
        moved_.insert(roles_.optimizers[static_cast<std::size_t>(role.root)].name);
        if (!is_option(role)) break;  // of the optimizer's own: where it is
        return;
      case Role::kOther:
        if (to_fsdp_ && (is_of_torch_dist(entry) || expand(entry, entries))) return;
        break;
    }
    entries.push_back(std::move(entry));
  }

  static bool is_option(const EntryRole& role) {
    return role.group >= 0 || !role.fqn.empty() || role.leaf.empty();
  }

  /// What torch_dist keeps for each place of a grid, and what says which form its state has.
  bool is_of_torch_dist(const StateEntry& entry) {
    if (entry.name.find("_extra_state") != SharedText::npos) {
      leave_out(entry, "Megatron-FSDP saves no _extra_state");
      return true;
    }
    return entry.name == "optimizer.param_state_sharding_type";
  }

  /// A dict of values, which torch_dist keeps as one: DCP has each value by itself.
  static bool expand(const StateEntry& entry, std::vector<StateEntry>& entries) {
    constexpr std::uint64_t kMostLeaves = std::uint64_t{1} << 20;
    if (!entry.value.is_dict() || entry.value.holds_tensors()) return false;
    ValueBudget budget(kMostLeaves);
    StateDict leaves = flatten(entry.value, budget);
    if (!leaves.containers.empty()) return false;  // what paths alone do not give back
    for (StateEntry& leaf : leaves.entries) {
      leaf.path.insert(leaf.path.begin(), entry.path.begin(), entry.path.end());
      leaf.name = dotted(leaf.path);
      leaf.rank = entry.rank;
      entries.push_back(std::move(leaf));
    }
    return !leaves.entries.empty();
  }

  Path state_path(const std::string& fqn, const std::string& leaf) const {
    if (!to_fsdp_) return {key_item(fmt::format("optimizer.state.{}.{}", leaf, fqn))};
    return {key_item("optimizer"), key_item("state"), key_item(std::string(kWrappers) + fqn),
            key_item(leaf)};
  }

  void place(StateEntry& entry, Path path) {
    entry.path = std::move(path);
    entry.name = dotted(entry.path);
    for_each_tensor(entry.value, [&](std::uint32_t t) { manifest_.tensors[t].name = entry.name; });
  }

  StateEntry& add(Path path, Value value) {
    StateEntry& entry = manifest_.state.entries.emplace_back();
    entry.value = std::move(value);
    entry.path = std::move(path);
    entry.name = dotted(entry.path);
    return entry;
  }

  // Options.

  /// All groups, those of chained optimizers behind each other.
  std::vector<OptimGroup> groups() const {
    std::vector<OptimGroup> all;
    for (const OptimState& optim : states_)
      all.insert(all.end(), optim.groups.begin(), optim.groups.end());
    return all;
  }

  std::vector<std::string> trained() const {
    std::vector<std::string> names;
    for (const OptimState& optim : states_)
      for (const OptimParameter& p : optim.parameters)
        if (!p.leaves.empty()) names.push_back(p.fqn);
    return names;
  }

  /// The group of a parameter: the one that lists it, or the only one that Megatron could have put
  /// it in: biases and vectors do not decay, experts are in groups of their own.
  const OptimGroup* group_of(const std::string& fqn, const std::vector<OptimGroup>& all) const {
    for (const OptimGroup& group : all)
      if (std::ranges::find(group.members, fqn) != group.members.end()) return &group;
    const Shape* shape = shape_of(fqn);
    const bool decays = shape != nullptr && shape->rank() > 1 && !fqn.ends_with(".bias");
    const bool expert = fqn.find(".experts.") != fqn.npos;
    const bool apart = std::ranges::any_of(all, is_expert_group);
    std::vector<const OptimGroup*> fit;
    for (const OptimGroup& group : all) {
      if (!group.stored_members.empty()) continue;
      const auto weight = real_option(group, "wd_mult");
      if (all.size() > 1 && weight && (*weight != 0) != decays) continue;
      if (apart && is_expert_group(group) != expert) continue;
      fit.push_back(&group);
    }
    return fit.size() == 1 ? fit[0] : nullptr;
  }

  void add_options() {
    const std::vector<OptimGroup> all = groups();
    const std::vector<std::string> names = trained();
    if (names.empty()) return;
    bool inferred = false;
    std::set<std::string> done;
    for (const std::string& fqn : names) {
      const OptimGroup* group = group_of(fqn, all);
      if (group == nullptr)
        fail(Code::kUnsupported,
             fmt::format("Megatron-FSDP wants the options of each parameter, and nothing says "
                         "which of {} groups \"{}\" is in",
                         all.size(), printable(fqn)),
             "leave the optimizer out with --only model");
      inferred = inferred || (all.size() > 1 && group->stored_members.empty());
      // The options of a matrix in halves stand once, under the name of the whole.
      const std::string whole = is_half(fqn) ? fqn.substr(0, fqn.size() - kFirst.size()) : fqn;
      if (!done.insert(whole).second) continue;
      for (const auto& [key, option] : group->options) {
        if (!key.is_string()) continue;
        const Path path{key_item("optimizer"), key_item("param_to_group_meta"),
                        key_item(std::string(kWrappers) + whole), key_item(key.as_string())};
        add(path, copy_of(option, dotted(path)));
      }
    }
    if (inferred)
      notes_.push_back({Finding::kRekey, Severity::kInfo,
                        "groups list no parameters here: matrices decay, biases and vectors do "
                        "not, as Megatron groups them",
                        "", ""});
  }

  /// An option that is a tensor becomes one of its own for each parameter.
  Value copy_of(const Value& option, const std::string& name) {
    if (!option.is_tensor()) return option;
    const std::uint32_t source = option.tensor_index();
    const Shape shape = manifest_.tensors[source].spec.shape;
    return Value::tensor(build_tensor(manifest_, name, shape, {{whole_piece(manifest_, source)}}));
  }

  Value groups_value(const std::vector<OptimGroup>& of) const {
    ValueList list;
    for (const OptimGroup& group : of) {
      ValueDict options = group.options;
      ValueList members;
      for (const std::string& member : group.members) members.push_back(Value::string(member));
      options.emplace_back(Value::string("params"), Value::list(std::move(members)));
      list.push_back(Value::dict(std::move(options)));
    }
    return Value::list(std::move(list));
  }

  void add_groups() {
    std::vector<OptimGroup> dense, expert;
    for (OptimGroup& group : groups())
      (is_expert_group(group) ? expert : dense).push_back(std::move(group));
    if (dense.empty() && expert.empty()) return;
    const Path root{key_item("optimizer")};
    const auto add_chained = [&](Path at, const std::vector<OptimGroup>& of) {
      add(below(below(at, "optimizer"), "param_groups"), groups_value(of));
      add(below(at, "param_state_sharding_type"), Value::string("fully_reshardable"));
    };
    if (dense.empty() || expert.empty()) {
      add_chained(root, dense.empty() ? expert : dense);
    } else {
      add_chained(below(root, {int_key_item(0)}), dense);
      add_chained(below(root, {int_key_item(1)}), expert);
    }
  }

  /// torch_dist has a master for each parameter that is trained.
  void add_masters() {
    for (const OptimState& optim : states_)
      for (const OptimParameter& p : optim.parameters) {
        const auto is_master = [](const OptimLeaf& leaf) { return is_master_leaf(leaf.name); };
        if (p.leaves.empty() || p.weight == kNoTensor || std::ranges::any_of(p.leaves, is_master))
          continue;
        const Path path = state_path(p.fqn, "param");
        const std::uint32_t made =
            build_tensor(manifest_, dotted(path), manifest_.tensors[p.weight].spec.shape,
                         {{whole_piece(manifest_, p.weight)}});
        manifest_.tensors[made].kind = TensorKind::kMaster;
        add(path, Value::tensor(made));
      }
  }

  Manifest& manifest_;
  bool to_fsdp_;
  Roles roles_;
  std::vector<OptimState> states_;
  std::map<std::string, std::uint32_t> weights_;  // by FQN
  std::map<std::string, std::string> fqns_;       // by stored key
  std::set<std::string> moved_;                   // roots of optimizers
  std::vector<Note> notes_;
};

}  // namespace

MegatronPlaces parse_megatron_places(std::string_view text) {
  if (text == "fsdp_dtensor") return MegatronPlaces::kFsdp;
  if (text == "torch_dist") return MegatronPlaces::kDist;
  fail(Code::kInvalidArgument,
       fmt::format("\"{}\" are no places; known: fsdp_dtensor, torch_dist", printable(text)));
}

std::vector<Note> move_to_megatron_places(Manifest& manifest, MegatronPlaces places) {
  return Mover(manifest, places).run();
}

void refuse_halves(const Manifest& manifest, std::string_view format) {
  const Roles roles = find_roles(manifest.state);
  for (const EntryRole& role : roles.entries)
    if (role.role == Role::kModel && is_half(role.fqn))
      fail(Code::kUnsupported,
           fmt::format(
               "\"{}\" is half of a gated matrix, as Megatron-FSDP keeps it; {} has it whole",
               printable(role.fqn), format),
           "--rules megatron-fsdp joins the halves");
}

}  // namespace tessera

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

#include "lib/format/megatron_torch/args.h"
#include "lib/format/megatron_torch/bucket_names.h"
#include "lib/state/edit/move_entry.h"
#include "lib/state/edit/take_out.h"
#include "lib/state/role_names.h"

namespace tessera {
namespace {

using megatron_torch::Args;
using megatron_torch::bucket_groups;

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

constexpr std::string_view kShardingType = "param_state_sharding_type";
constexpr std::string_view kContentMetadata = "content_metadata";
constexpr std::string_view kContentType = "distrib_optim_sharding_type";
constexpr std::string_view kWholeState = "fully_reshardable";

/// The form of a distributed optimizer's state, where the entry says it, by itself or in the dict of an
/// optimizer that is one value.
const Value* sharding_type(const StateEntry& entry) {
  if (entry.path.empty() || entry.path[0].kind != PathItem::Kind::kKey ||
      entry.path[0].key != "optimizer")
    return nullptr;
  const bool by_itself =
      entry.path.back().kind == PathItem::Kind::kKey && entry.path.back().key == kShardingType;
  const Value* type = by_itself ? &entry.value : entry.value.find(kShardingType);
  return type != nullptr && type->is_string() ? type : nullptr;
}

/// The value, or the dict's item of this name, says that the state is whole.
Value with_type(const Value& value, std::string_view key) {
  const Value type = Value::string(std::string(kWholeState));
  if (!value.is_dict()) return type;
  ValueDict items = value.as_dict();
  const auto found = std::ranges::find_if(items, [&](const auto& item) {
    return item.first.is_string() && item.first.as_string() == key;
  });
  if (found != items.end())
    found->second = type;
  else
    items.emplace_back(Value::string(std::string(key)), type);
  return Value::dict(std::move(items));
}

constexpr std::string_view kWholeMaster = "optimizer.state.param.";
constexpr std::string_view kMasterPart = "optimizer.state.fp32_param.";

/// Flattened ranges of masters are called otherwise than whole ones, and as those in rank files.
void rename_masters(Manifest& manifest, std::string_view from, std::string_view to) {
  for (StateEntry& entry : manifest.state.entries) {
    const std::size_t at = entry.value.is_tensor() ? entry.name.find(from) : SharedText::npos;
    if (at == SharedText::npos || entry.path.size() != 1) continue;
    std::string name(entry.name);
    name.replace(at, from.size(), to);
    manifest.tensors[entry.value.tensor_index()].name = name;
    entry.path = {key_item(name)};
    entry.name = std::move(name);
  }
}

class Mover {
 public:
  Mover(Manifest& manifest, MegatronPlaces places, std::optional<double> step)
      : manifest_(manifest), to_fsdp_(places == MegatronPlaces::kFsdp), step_(step) {}

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
    find_plain();
    std::vector<StateEntry> entries;
    for (std::size_t i = 0; i < roles_.entries.size(); ++i) move(i, entries);
    manifest_.state.entries = std::move(entries);
    std::erase_if(manifest_.state.containers, [&](const ContainerNote& note) {
      return std::ranges::any_of(moved_, [&](const std::string& name) {
        return (dotted(note.path) + ".").starts_with(name + ".");
      });
    });
    to_fsdp_ ? add_options() : add_groups();
    if (!to_fsdp_ && !plain_) add_masters();
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

  /// An optimizer that is not distributed, by its rank files: groups list their members there. torch_dist
  /// then has other names for masters, and one step for all parameters, where fp32 weights have none
  /// apart from them. Source: sharded_state_dict of Float16OptimizerWithFloat16Params and FP32Optimizer,
  /// megatron/core/optimizer/optimizer.py.
  void find_plain() {
    if (to_fsdp_ || !step_) return;
    for (const OptimState& optim : states_) {
      for (const OptimGroup& group : optim.groups) plain_ = plain_ || !group.stored_members.empty();
      for (const OptimParameter& p : optim.parameters)
        for (const OptimLeaf& leaf : p.leaves)
          has_masters_ = has_masters_ || is_master_leaf(leaf.name);
    }
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

  /// torch_dist calls masters of a distributed optimizer otherwise than rank files do.
  std::string leaf_of(const EntryRole& role) const {
    std::string leaf(role.leaf);
    if (to_fsdp_ || !is_master_leaf(leaf)) return leaf;
    return plain_ ? "fp32_param" : "param";
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
    if (!to_fsdp_ && !entry.value.is_dict() && sharding_type(entry)) return;  // said anew
    switch (role.role) {
      case Role::kModel:
        place(entry, to_fsdp_ ? Path{key_item("model"), key_item(std::string(kWrapper) + role.fqn)}
                              : Path{key_item(role.fqn)});
        break;
      case Role::kOptimState:
        if (plain_ && step_ && role.leaf == "step")
          return;  // one for all of them, said with the groups
        place(entry, state_path(fqn_of(role), leaf_of(role)));
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

  void place(StateEntry& entry, Path path) { move_entry(manifest_, entry, std::move(path)); }

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
      if (!plain_) {  // whose members each rank lists for itself
        ValueList members;
        for (const std::string& member : group.members) members.push_back(Value::string(member));
        options.emplace_back(Value::string("params"), Value::list(std::move(members)));
      }
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
      const Path inner = plain_ && !has_masters_ ? at : below(at, "optimizer");
      add(below(inner, "param_groups"), groups_value(of));
      if (plain_ && step_) add(below(below(inner, "state"), "common_step"), Value::real(*step_));
      if (plain_) return;
      add(below(at, "param_state_sharding_type"), Value::string(std::string(kWholeState)));
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
  std::optional<double> step_;
  bool plain_ = false, has_masters_ = false;
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

std::vector<Note> move_to_megatron_places(Manifest& manifest, MegatronPlaces places,
                                          std::optional<double> step) {
  return Mover(manifest, places, step).run();
}

void say_fully_reshardable(Manifest& manifest) {
  if (!bucket_groups(manifest).empty()) return;
  bool in_ranges = false, changed = false;
  for (StateEntry& entry : manifest.state.entries)
    if (const Value* type = sharding_type(entry)) {
      const std::string& text = type->as_string();
      const bool ranges = text == "fully_sharded_model_space";
      if (!ranges && text != "dp_reshardable" && text != "fully_sharded_bucket_space") continue;
      in_ranges = in_ranges || ranges;
      changed = true;
      entry.value = with_type(entry.value, kShardingType);
    }
  if (!changed) return;
  if (in_ranges) rename_masters(manifest, kMasterPart, kWholeMaster);
  const auto found = std::ranges::find_if(
      manifest.state.entries, [](const StateEntry& e) { return e.name == kContentMetadata; });
  if (found != manifest.state.entries.end()) {
    found->value = with_type(found->value, kContentType);
    return;
  }
  // Releases before 0.13 save none; later ones take that for another form.
  StateEntry& added = manifest.state.entries.emplace_back();
  added.name = std::string(kContentMetadata);
  added.path = {key_item(added.name)};
  added.value = with_type(Value::dict({}), kContentType);
}

void say_gates_are_whole(Manifest& manifest) {
  constexpr std::string_view kApart = "singleton_local_shards";
  const Roles roles = find_roles(manifest.state);
  if (std::ranges::any_of(roles.entries, [](const EntryRole& role) {
        return role.role == Role::kModel && is_half(role.fqn);
      }))
    return;
  for (StateEntry& entry : manifest.state.entries) {
    if (entry.name != kContentMetadata || entry.value.find(kApart) == nullptr) continue;
    ValueDict items = entry.value.as_dict();
    for (auto& [key, value] : items)
      if (key.is_string() && key.as_string() == kApart) value = Value::boolean(false);
    entry.value = Value::dict(std::move(items));
  }
}

namespace {

enum class FurtherLayers : std::uint8_t { kAsTheyAre, kOld, kNew };

/// Which name of theirs a result has.
FurtherLayers further_layers(const Manifest& manifest, bool of_rank_files,
                             std::optional<std::int64_t> core) {
  constexpr std::int64_t kFirstNew = 17;
  constexpr std::string_view kNewArgument = "mtp_use_repeated_layer";
  if (!of_rank_files) return FurtherLayers::kOld;
  if (core) return *core >= kFirstNew ? FurtherLayers::kNew : FurtherLayers::kOld;
  const Args args = megatron_torch::args_of(manifest.state);
  const Value* known = args.attributes();
  const bool fresh = known != nullptr && known->find(kNewArgument) != nullptr;
  return fresh ? FurtherLayers::kNew : FurtherLayers::kAsTheyAre;
}

std::string further_layer_name(const std::string& fqn, FurtherLayers named) {
  constexpr std::string_view kLayers = "mtp.layers.", kOld = ".transformer_layer.",
                             kNew = ".mtp_model_layer.";
  if (named == FurtherLayers::kAsTheyAre || !fqn.starts_with(kLayers)) return fqn;
  const std::string_view from = named == FurtherLayers::kNew ? kOld : kNew,
                         to = named == FurtherLayers::kNew ? kNew : kOld;
  const std::size_t at = fqn.find('.', kLayers.size());
  if (at == std::string::npos || !std::string_view(fqn).substr(at).starts_with(from) ||
      !is_decimal(std::string_view(fqn).substr(kLayers.size(), at - kLayers.size())) ||
      std::string_view(fqn).substr(at + from.size()).starts_with("layers."))
    return fqn;
  return std::string(fqn).replace(at, from.size(), to);
}

}  // namespace

std::string further_layer_name(const Manifest& manifest, const std::string& fqn, bool of_rank_files,
                               std::optional<std::int64_t> core) {
  return further_layer_name(fqn, further_layers(manifest, of_rank_files, core));
}

void name_further_layers(Manifest& manifest, bool of_rank_files, std::optional<std::int64_t> core) {
  const FurtherLayers named = further_layers(manifest, of_rank_files, core);
  if (named == FurtherLayers::kAsTheyAre) return;
  rename_parameters(manifest, find_roles(manifest.state),
                    [&](const std::string& fqn) { return further_layer_name(fqn, named); });
}

namespace {

/// The number, as text, of the optimizer in a chain of several whose group this is:
/// optimizer.<N>.optimizer.param_groups.<group>.
std::optional<std::string> chained_groups(const Path& path) {
  const bool groups = path.size() > 4 && is_key(path[0], "optimizer") &&
                      is_decimal(path[1].text()) && is_key(path[2], "optimizer") &&
                      is_key(path[3], "param_groups") && path[4].kind == PathItem::Kind::kIndex;
  return groups ? std::optional(path[1].text()) : std::nullopt;
}

/// Groups of one optimizer made of those of a chain, in the order of the chain: rank files are read so. A
/// group of experts that equals another but for `is_expert_parallel` is the same group there.
class JoinedGroups {
 public:
  explicit JoinedGroups(const StateDict& state) {
    for (const StateEntry& entry : state.entries)
      if (const auto chained = chained_groups(entry.path))
        options_[{*chained, entry.path[4].index}].emplace_back(
            dotted(Path(entry.path.begin() + 5, entry.path.end())), entry.value);
    std::vector<const Options*> kept;
    for (const auto& [group, options] : options_) {
      if (std::ranges::none_of(kept,
                               [&](const Options* known) { return alike(*known, options); })) {
        places_.emplace(group, static_cast<std::int64_t>(kept.size()));
        kept.push_back(&options);
      }
    }
  }

  bool chained(const Path& path) const { return chained_groups(path).has_value(); }
  /// Whether the path's group is another's; else the path is moved to where the one optimizer has it.
  bool leaves(Path& path) const {
    const auto found = places_.find({*chained_groups(path), path[4].index});
    if (found == places_.end()) return true;
    Path moved{key_item("optimizer"), key_item("param_groups"), index_item(found->second)};
    moved.insert(moved.end(), path.begin() + 5, path.end());
    path = std::move(moved);
    return false;
  }

 private:
  using Group = std::pair<std::string, std::int64_t>;
  using Options = std::vector<std::pair<std::string, Value>>;

  static bool alike(const Options& a, const Options& b) {
    const auto same = [](const auto& x, const auto& y) {
      return x.first == y.first && (x.first == "is_expert_parallel" || x.second == y.second);
    };
    return std::ranges::equal(a, b, same);
  }

  std::map<Group, Options> options_;
  std::map<Group, std::int64_t> places_;
};

}  // namespace

void name_optimizer_as_rank_files(Manifest& manifest) {
  rename_masters(manifest, kWholeMaster, kMasterPart);
  std::vector<StateEntry>& entries = manifest.state.entries;
  std::vector<bool> forms;
  for (const StateEntry& entry : entries)
    forms.push_back(!entry.value.is_dict() && sharding_type(entry));
  take_out(manifest.state, forms);
  const JoinedGroups joined(manifest.state);
  std::vector<bool> repeated;
  for (StateEntry& entry : entries)
    repeated.push_back(joined.chained(entry.path) && joined.leaves(entry.path));
  std::erase_if(manifest.state.containers, [&](ContainerNote& note) {
    return joined.chained(note.path) && joined.leaves(note.path);
  });
  const auto unwrap = [](Path& path) {
    const bool wrapped = path.size() > 2 && is_key(path[0], "optimizer") &&
                         is_key(path[1], "optimizer") && is_key(path[2], "param_groups");
    if (wrapped) path.erase(path.begin() + 1);
    return wrapped;
  };
  for (StateEntry& entry : entries) {
    const bool moved = unwrap(entry.path);
    if (!moved && entry.name == dotted(entry.path)) continue;
    entry.name = dotted(entry.path);
    for_each_tensor(entry.value, [&](std::uint32_t t) { manifest.tensors[t].name = entry.name; });
  }
  for (ContainerNote& note : manifest.state.containers) unwrap(note.path);
  take_out(manifest.state, repeated);
}

void refuse_plain_optimizer(const Manifest& manifest) {
  for (const StateEntry& entry : manifest.state.entries)
    if (!entry.path.empty() && is_key(entry.path[0], "optimizer") &&
        is_key(entry.path.back(), "common_step"))
      fail(Code::kUnsupported,
           fmt::format(
               "\"{}\" is that of an optimizer that is not distributed, whose groups list no "
               "members in torch_dist, as they do in rank files",
               printable(entry.name)),
           "leave the optimizer out with --only model, or have Megatron-LM write the rank files: "
           "--ckpt-convert-format torch --ckpt-convert-save DIR");
}

void refuse_single_experts(const Manifest& manifest) {
  constexpr std::string_view kExperts = ".experts.experts.";
  for (const StateEntry& entry : manifest.state.entries) {
    const std::string_view name = entry.name;
    const std::size_t at = name.find(kExperts);
    if (!entry.value.is_tensor() || at == name.npos || at + kExperts.size() == name.size() ||
        !is_digit(name[at + kExperts.size()]))
      continue;
    fail(Code::kInvalidArgument,
         fmt::format(
             "\"{}\" is one expert by itself, as torch_dist has it with singleton_local_shards; "
             "rules know experts by the names of Megatron-FSDP",
             printable(name)),
         "rename them in the same command: --rules megatron-fsdp:megatron-dist "
         "--rename '*.experts.experts.*.linear_fc1.weight_*=*.experts.linear_fc1.weight*_*' "
         "--rename '*.experts.experts.*.linear_fc2.weight=*.experts.linear_fc2.weight*'");
  }
}

void refuse_halves(const Manifest& manifest, std::string_view format) {
  const Roles roles = find_roles(manifest.state);
  for (const EntryRole& role : roles.entries)
    if (role.role == Role::kModel && is_half(role.fqn))
      fail(Code::kUnsupported,
           fmt::format("\"{}\" is half of a gated matrix, as Megatron-FSDP and torch_dist with "
                       "singleton_local_shards keep it; {} has it whole",
                       printable(role.fqn), format),
           "--rules megatron-fsdp:megatron-dist joins the halves");
}

}  // namespace tessera

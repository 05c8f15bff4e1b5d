#pragma once
// Roles: what each entry of a state dict is for a training run: model weight, optimizer state of a
// parameter, an option of an optimizer group, or something else.
//
// An optimizer root is a subtree that holds `state` and `param_groups` (or, without groups, `state`
// with leaves that optimizers are known to keep). It may be the whole dict, a top-level key or
// deeper. Its dialect says how parameters are named inside:
//
//   kByFqn       <root>.state.<fqn>.<leaf>        groups list FQNs             (DCP, FSDP)
//   kById        <root>.state.<id>.<leaf>         groups list integer ids      (torch.optim)
//   kFlat        <root>: "state.<fqn>.<leaf>", "param_groups.<fqn>.<option>"   (flattened form)
//   kLeafFirst   <root>.state.<leaf>.<fqn>                                     (Megatron)
//
// The model stands below the keys under which the optimizers' names are found, else below a
// well-known key ("model", "state_dict"; beside an optimizer at any depth), else at the top. There,
// counters, losses and random states (train_state.step) are none of its weights. Several optimizers
// may name several models (a GAN's); names that fit more than one are given by what both are called.
// Where another subtree repeats half of the model's names or more, it is a copy of it.
//
// Everything here is pure and thread-safe; nothing reads tensor bytes.
#include <tessera/state/manifest.h>
#include <tessera/state/value.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

enum class Role : std::uint8_t { kModel, kOptimState, kOptimGroup, kOther };

enum class OptimDialect : std::uint8_t { kByFqn, kById, kFlat, kLeafFirst };
/// "state keyed by FQN", "state keyed by integer id", ...
std::string_view dialect_name(OptimDialect dialect);

/// One optimizer inside a state dict.
struct OptimizerRoot {
  std::string name;  // dotted; "" when the dict itself is the optimizer
  OptimDialect dialect = OptimDialect::kByFqn;
  bool has_groups = false;
  bool groups_as_one_value = false;  // `param_groups` is one list value (DCP before 2.4)
  /// Index in Roles::model_roots of the model that it names; -1: it names none (ids, no state).
  std::int32_t model = -1;
  bool model_certain = true;  // false: its names fit several models equally well
};

/// What entry i of the state dict is.
struct EntryRole {
  Role role = Role::kOther;
  std::int32_t root = -1;  // index in Roles::optimizers (kOptimState, kOptimGroup); -1 otherwise
  /// kModel: name without the model root; kOptimState: parameter key as stored (an id in decimal
  /// for kById); kOptimGroup of kFlat: the FQN; kOther: of a copy of the model (averaged weights),
  /// the name that the weight has in the model; else "".
  SharedText fqn;
  /// kOptimState: "exp_avg"; kOptimGroup: the option ("lr"), "" for the whole list.
  SharedText leaf;
  std::int64_t group = -1;  // kOptimGroup: its index; -1 for kFlat and for the whole list
};

struct Roles {
  std::vector<OptimizerRoot> optimizers;
  std::vector<std::string> model_roots;  // dotted; "" when weights stand at the top
  std::vector<EntryRole> entries;        // one per StateDict::entries
};

/// Classifies every entry by names, paths and values alone.
Roles find_roles(const StateDict& state);

/// True for names optimizers give their per-parameter state: exp_avg, momentum_buffer, step, ...
bool is_known_optimizer_leaf(std::string_view leaf);
/// True for leaves that hold the fp32 master copy of the weight: fp32, master_param, ...
bool is_master_leaf(std::string_view leaf);

/// Sets StoredTensor::kind of every tensor whose driver left it at kOther (design: optim under an
/// optimizer root, master = its fp32 master leaf; param = has state, is listed in a group or was
/// pickled as a Parameter, else floating, rank >= 1 and not named running_*; running_* is a buffer;
/// else other). Embedded tensors stay kOther.
void assign_kinds(Manifest& manifest, const Roles& roles);

/// Optimizers keyed by id have integer keys in `state`, which is how torch.optim finds them, but
/// DCP keeps every dict key as text. Makes those keys integers again whose ids the groups list.
/// Names stay as they are.
void restore_integer_ids(StateDict& state, const Roles& roles);

/// New FQN for an old one; returning the same text keeps it.
using RenameFqn = std::function<std::string(const std::string& fqn)>;
/// Applies `rename` wherever an FQN occurs: model keys, optimizer state keys, members of groups
/// (all dialects but kById, whose ids stay). Tensor names, entry names and paths follow. Throws
/// kInvalidArgument naming both when two entries would get one name.
void rename_parameters(Manifest& manifest, const Roles& roles, const RenameFqn& rename);

/// Drops every entry for which keep[i] is false, the tensors only they use, and dropped parameters'
/// memberships in groups (`forget`: FQNs to take out of groups listing FQNs; their state entries
/// must be dropped by the caller through keep). Tensor indices are renumbered densely; chunks stay
/// where they are. What is dropped is appended to Manifest::left_out.
void keep_entries(Manifest& manifest, const std::vector<bool>& keep,
                  const std::vector<std::string>& forget = {});

/// Index that means no tensor; in a table of new indices, a tensor that is dropped.
inline constexpr std::uint32_t kNoTensor = 0xffffffffu;
/// `value` with every tensor reference i replaced by new_index[i]; shared nodes stay shared.
/// Precondition: no reference maps to kNoTensor.
Value remap_tensors(const Value& value, const std::vector<std::uint32_t>& new_index);
/// Calls `visit` for every tensor reference below `value`, each shared node once.
void for_each_tensor(const Value& value, const std::function<void(std::uint32_t)>& visit);

}  // namespace tessera

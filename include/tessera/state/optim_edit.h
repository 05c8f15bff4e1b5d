#pragma once
// Edits of whole optimizers: how their state is keyed, and where the weights come from.
//
//   rekey     optim.state.0.exp_avg            <->  optim.state.layers.0.w.exp_avg
//             param_groups.0.params [0, 1]     <->  ["layers.0.w", "layers.0.b"]
//   group     param_groups.layers.0.w.lr        ->   param_groups.0.lr, param_groups.0.params
//   masters   a weight takes the chunks (and the type) of its fp32 master copy
//
// Ids are the positions of parameters in the groups, group by group, as torch.optim numbers them;
// names are what torch.distributed.checkpoint.state_dict and FSDP read. Ids become names by
// canonical_optim_states (names that the groups recorded, else order and shape); without an answer
// there, nothing is guessed. Everything else of the optimizer stays: unknown leaves and options,
// state of frozen parameters, steps where they are.
//
// Pure but for the manifest given; no tensor byte is read. Not thread-safe on one manifest.
#include <tessera/state/manifest.h>

#include <vector>

namespace tessera {

/// kFlat: PyTorch's flattened form, which training code keeps that sets flatten_optimizer_state_dict
/// (torchtitan):
///
///   optim["state.layers.0.w.exp_avg"]   optim["param_groups.layers.0.w.lr"], for each member of a group
enum class OptimKeys : std::uint8_t { kKeep, kFqn, kId, kFlat };

/// Rekeys every optimizer that is not keyed that way already. The notes say what was inferred.
/// Where order and shapes do not give names back, ids come with the option `param_names`, which
/// torch.optim keeps for named parameters: FQNs in the order of a group's ids. Throws kUnsupported
/// naming the optimizer and the id or parameter: an id that fits no parameter, ids that shapes allow
/// to be several parameters, no model to name ids by, no groups to number by, state that no group
/// lists, names that ids would lose; for what the flattened form has no place for: options of a group
/// without members, state of no parameter, names of options or leaves with dots. Flattened options are
/// one group where they are equal: tensors among them have to be located (FormatDriver::locate), or each
/// is taken for another.
std::vector<Note> rekey_optimizers(Manifest& manifest, OptimKeys keys);

/// Gives optimizers whose options are flattened per parameter groups with lists of members, one
/// group for all parameters with equal options. Other optimizers stay as they are.
std::vector<Note> group_optimizers(Manifest& manifest);

/// Weights come from their master copies, which stay where they are. Throws kUnsupported when there
/// are no master copies, when one has another shape than its weight, or when ids leave open which
/// weight it belongs to.
std::vector<Note> prefer_masters(Manifest& manifest);

}  // namespace tessera

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
// canonical_optim_states (names the groups recorded, else order and shape): nothing is guessed
// where that finds no answer. Everything else of the optimizer stays: unknown leaves and options,
// state of frozen parameters, steps where they stand.
//
// Pure but for the manifest given; no tensor byte is read. Not thread-safe on one manifest.
#include <tessera/state/manifest.h>

#include <vector>

namespace tessera {

enum class OptimKeys : std::uint8_t { kKeep, kFqn, kId };

/// Rekeys every optimizer; one that is keyed so already stays as it is. The notes say what was
/// inferred. Throws kUnsupported naming the optimizer and the id or parameter: an id that fits no
/// parameter, ids that shapes allow to be several parameters, no model to name ids by, no groups to
/// number by, state that no group lists.
std::vector<Note> rekey_optimizers(Manifest& manifest, OptimKeys keys);

/// Gives optimizers whose options stand flattened, one by one for each parameter, groups with lists
/// of members: parameters with equal options together. Others stay as they are.
std::vector<Note> group_optimizers(Manifest& manifest);

/// Weights come from their master copies, which stay where they are. Throws kUnsupported when there
/// are no master copies, one is of another shape than its weight, or ids leave open whose it is.
std::vector<Note> prefer_masters(Manifest& manifest);

}  // namespace tessera

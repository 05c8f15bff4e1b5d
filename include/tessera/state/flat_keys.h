#pragma once
// OptimKeys that ask for PyTorch's flattened form, which training code keeps that sets
// flatten_optimizer_state_dict (torchtitan):
//
//   optim["state.layers.0.w.exp_avg"]   optim["param_groups.layers.0.w.lr"], for each member of a group
//
// rekey_optimizers (optim_edit.h) makes it of ids and of names, and these of it. It throws
// kUnsupported for what that form has no place for: options of a group without members, state of no
// parameter, names of options or leaves with dots. Flattened options are one group where they are
// equal: tensors among them have to be located (FormatDriver::locate), or each is taken for another.
#include <tessera/state/optim_edit.h>

namespace tessera {

inline constexpr OptimKeys kFlatKeys{3};  // behind OptimKeys::kId

}  // namespace tessera

#pragma once
// One optimizer in PyTorch's flattened form, StateDictOptions(flatten_optimizer_state_dict=True):
//
//   optim.state.<fqn>.<leaf>                      ->  optim["state.<fqn>.<leaf>"]
//   optim.param_groups.<g>.<option>, .params      ->  optim["param_groups.<fqn>.<option>"] of each
//
// Source: _flatten_optim_state_dict in torch/distributed/checkpoint/state_dict.py.
#include <tessera/state/manifest.h>

#include <cstddef>

namespace tessera {

/// Whether all of the optimizer at `root` stands in that form.
bool is_flattened(const Manifest& manifest, std::size_t root);

/// The optimizer must be keyed by FQN. A tensor among the options is as many tensors with its bytes.
/// Throws kUnsupported naming what has no place in that form: options of a group without members,
/// state of no parameter, leaves and options whose names have dots.
Note flatten_optimizer(Manifest& manifest, std::size_t root);

}  // namespace tessera

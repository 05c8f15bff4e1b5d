#pragma once
// Where the weights stand in a state dict, decided once: by the names that its optimizers know, else
// by well-known keys, else the top.
#include <tessera/state/roles.h>

namespace tessera {

/// Sets model_roots, OptimizerRoot::model, and the entries that are a model's (Role::kModel) or a
/// copy's of it (their fqn). `roles` has the optimizers and their entries already.
void find_models(const StateDict& state, Roles& roles);

/// An optimizer's `state_dict()`, by its two keys.
bool looks_like_optimizer(const Value& value);

/// A weight that is no plain tensor: an object around tensors (a quantized weight, a ParameterDict,
/// a module), an array of numpy's, or a tuple, a list or a dict of them that is one value.
bool holds_weights(const Value& value);

}  // namespace tessera

#pragma once
// The state of another format as a Trainer's folder keeps it.
//
//   weights     below "model", in the model's order where that is known
//   optimizer   below "optimizer", by ids in the order of Trainer's own: two groups, of parameters that
//               decay and of those that do not, each in the model's order
//   schedule, loss scale    below "scheduler" and "scaler"
//
// transformers 5.24.0: Trainer.create_optimizer, Trainer.get_decay_parameter_names.
#include <tessera/format/format_driver.h>
#include <tessera/state/optim_edit.h>

#include <vector>

namespace tessera::hf_trainer {

/// `keys`: kKeep numbers the parameters as Trainer does; kId keeps the groups and the numbers of the
/// source; kFqn keeps names. A state that a Trainer's folder had stays as it is. What has no place is
/// left out (Manifest::left_out) and named; the aliases of `request` follow the weights. Throws kUnsupported where there are several models or
/// optimizers, where the order of Trainer's parameters or their group is not known, where parameters
/// of one of its groups have other options, and for copies of the model.
std::vector<Note> adopt_state(Manifest& manifest, TargetRequest& request, OptimKeys keys);

/// Gives `source` the schedule and the loss scale of `written`, where their files were carried along
/// as they are.
void restate_as_written(Manifest& source, const StateDict& written);

}  // namespace tessera::hf_trainer

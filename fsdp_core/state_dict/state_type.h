#pragma once
// Which types of state dict a model and an optimizer can have.
#include <tessera/fsdp/state_dict.h>

namespace tessera::fsdp {

/// Throws kInvalidArgument or kUnsupported, naming the unit. `optimizer`: null: of the model alone.
void check_state_type(const ModuleRef& model, const torch::optim::Optimizer* optimizer,
                      const StateDictOptions& options);

}  // namespace tessera::fsdp

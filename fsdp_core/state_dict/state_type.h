#pragma once
// Which types of state dict a model and an optimizer can have.
#include <tessera/fsdp/state_dict.h>

namespace tessera::fsdp {

/// Throws kInvalidArgument or kUnsupported, naming the unit.
void check_state_type(const ModuleRef& model, bool with_optimizer, const StateDictOptions& options);

}  // namespace tessera::fsdp

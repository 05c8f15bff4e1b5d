#pragma once
// What a state holds beside weights, optimizer state and groups, sorted by where DeepSpeed's files
// have room for it. Pure.
#include <tessera/state/manifest.h>
#include <tessera/state/roles.h>

#include "lib/format/deepspeed_zero/files.h"
#include "lib/format/value_policy.h"

namespace tessera::deepspeed {

struct SourceFields {
  Value fields;        // a dict: keys of the model file
  Value globals;       // a dict: keys of the optimizer file
  Value of_optimizer;  // Naming::optimizer
};

/// `naming`: its roots are those of the source. Throws kUnsupported for keys that DeepSpeed keeps
/// for itself.
SourceFields source_fields(const Manifest& source, const Roles& roles, const Naming& naming,
                           ValuePolicy& policy);

}  // namespace tessera::deepspeed

#pragma once
// Options of optimizers that stand flattened, once for each parameter: those with equal ones are a
// group. Of tensors among them (a learning rate) checksums say that, which are known once located.
#include <tessera/ops/open.h>

namespace tessera {

/// Call before canonical_optim_states() is asked for groups, or optimizers are rekeyed.
void locate_flattened_options(OpenedCheckpoint& checkpoint, const ReadOptions& options);

}  // namespace tessera

#pragma once
// verify of what lies beside a checkpoint and belongs to the same training state.
#include <tessera/ops/verify.h>

#include <vector>

namespace tessera {

/// Looks into each as a checkpoint of its own, at the level of `options`. Errors and warnings of
/// them go to `findings` with the file named from the folder of both; one that cannot be opened for
/// damage is CK051. What is of no format that is read here (a pickle of another kind) is counted,
/// and why it was not opened said.
std::vector<VerifiedBeside> verify_beside(FileSystem& fs, const OpenedCheckpoint& checkpoint,
                                          const VerifyOptions& options,
                                          std::vector<Note>& findings);

}  // namespace tessera

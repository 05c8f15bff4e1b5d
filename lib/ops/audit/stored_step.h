#pragma once
// How far a checkpoint says that it is: counters of the training loop, and steps of optimizers.
#include <tessera/ops/open.h>
#include <tessera/reshard/tensor_reader.h>
#include <tessera/state/optim_state.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

struct StoredStep {
  std::optional<double> value;
  std::string source;  // name of the value, or of the file
};

/// The step among the values beside model and optimizer (`train_state.step`, `iteration`), else in
/// the trainer_state.json that lies with the checkpoint.
StoredStep find_stored_step(OpenedCheckpoint& opened, FileSystem& fs,
                            const TransferOptions& transfer);

/// The one number that a tensor holds; nullopt for others, or where it cannot be read.
std::optional<double> number_in_tensor(OpenedCheckpoint& opened, std::uint32_t tensor,
                                       const TransferOptions& transfer);

/// Parameters whose step is not the one of most of their group.
struct OddSteps {
  std::uint32_t count = 0;
  std::string first;  // "layers.0.w is at 2 where 8 are at 1"
};
OddSteps find_odd_steps(const OptimState& optim, const std::vector<std::optional<double>>& steps);

}  // namespace tessera

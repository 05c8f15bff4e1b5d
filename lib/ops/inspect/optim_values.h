#pragma once
// The half of `optim` that reads tensors: steps, moments, weights.
#include <tessera/ops/optim.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

/// Finds where the tensors of all lie, at once: what follows does not open archives for each.
void locate_optimizers(OpenedCheckpoint& checkpoint, const std::vector<OptimState>& optimizers,
                       const TransferOptions& transfer);

/// Step of each of optim.parameters: its own, else its group's; plain values only.
std::vector<std::optional<double>> plain_steps(const OptimState& optim);
/// The same, steps stored as one-element tensors read.
std::vector<std::optional<double>> read_steps(OpenedCheckpoint& checkpoint, const OptimState& optim,
                                              const TransferOptions& transfer);

/// What a tensor of one element holds; nullopt for others.
std::optional<double> one_number(const Manifest& manifest, const TensorReader& reader,
                                 std::uint32_t tensor);

struct MomentScan {
  std::vector<Note> findings;
  std::vector<UpdateRow> updates;  // one per parameter with both moments and a weight, stored order
  std::string note;
};
/// One pass over exp_avg, exp_avg_sq and the weight of every parameter, side by side; master copies
/// against weights.
MomentScan scan_moments(OpenedCheckpoint& checkpoint, const OptimState& optim,
                        const std::vector<std::optional<double>>& steps,
                        const TransferOptions& transfer);

/// L2 norm of exp_avg_sq by FQN.
std::map<std::string, double> v_norms(OpenedCheckpoint& checkpoint, const OptimState& optim,
                                      const TransferOptions& transfer);

}  // namespace tessera

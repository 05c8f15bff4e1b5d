#pragma once
// Made-up models with optimizers of every kind that people train with, in every form they are
// stored in, and what such a checkpoint says in canonical form.
#include <tessera/state/manifest.h>
#include <tessera/state/optim_state.h>
#include <tessera/storage/file_system.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace tessera::testing {

enum class OptimizerKind : std::uint8_t {
  kAdam,               // step: a 0-dim tensor per parameter
  kOldAdam,            // step: an integer per parameter
  kAmsgrad,            // one more moment
  kSgd,                // no state at all
  kSgdMomentum,        // momentum_buffer, None where no gradient came yet
  kApex,               // no step per parameter, one in each group
  kTransformerEngine,  // the same, with fp32 master copies of bf16 weights
  kDeepSpeedAdam,      // a step per parameter, and one in the group that never moves
  kFactored,           // rows and columns instead of the second moment
  kUnknown,            // leaves and options nobody has heard of
  kNadam,              // one more counter, which torch.optim keeps before the moments
  kAsgd,               // three counters, and one moment
  kAdafactor,          // torch.optim's: no tensor of a matrix' own shape
};
inline constexpr int kOptimizerKinds = 13;
std::string kind_text(OptimizerKind kind);

/// How it is stored.
enum class OptimizerForm : std::uint8_t { kIds, kNames, kFlat };

/// A located manifest whose tensors lie in memory: `model` and `optim`, frozen parameters with and
/// without state, several groups. The same seed makes the same optimizer in every form.
Manifest random_optimizer(std::uint64_t seed, OptimizerKind kind, OptimizerForm form);

/// The same with all that makes ids hard to name: many parameters of one shape, frozen ones
/// anywhere (in a group or in none), buffers that look like parameters, groups and members in any
/// order. Names are those of Megatron's layers.
Manifest awkward_optimizer(std::uint64_t seed, OptimizerKind kind, OptimizerForm form);

/// Everything an optimizer says, by names: "layers.0.w exp_avg" -> "float32 [2,3] <sha256>", or a
/// value as JSON; "group 0 lr" -> JSON; "group 0" -> its members. The manifest must be located.
std::map<std::string, std::string> canonical_content(const Manifest& manifest,
                                                     const Directory& directory);

}  // namespace tessera::testing

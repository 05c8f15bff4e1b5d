#pragma once
// The optimizer of a state in the form that FairScale's files need: per parameter, with every leaf
// classified. Pure.
#include <tessera/state/optim_state.h>

#include <string>
#include <vector>

#include "lib/format/fairscale_fsdp/target.h"
#include "lib/format/torch_files/grouped_optim.h"

namespace tessera::fairscale {

/// A leaf of a tensor of the model that is no parameter: DeepSpeed keeps an fp32 of buffers.
struct BufferLeaf {
  std::string fqn;
  std::string name;
  std::size_t entry = 0;
};

struct TargetOptimizer {
  bool present = false;
  std::string root;
  GroupedOptimizer grouped;        // parameters are those of Target
  std::vector<std::size_t> extra;  // entries: other keys of the optimizer's dict
  std::vector<std::size_t> maps;   // entries: param_id_map and its like, which are made anew
  std::vector<BufferLeaf> of_buffers;
};

/// `optimizers`: canonical_optim_states(). `kept`: by entry; entries that are left out are false.
/// Throws kUnsupported for several optimizers, or state of parameters that the model does not have.
TargetOptimizer target_optimizer(const Manifest& source, const Roles& roles,
                                 const std::vector<OptimState>& optimizers, const Target& target,
                                 const std::vector<bool>& kept, GroupedOptimizer::Steps steps);

/// Throws kUnsupported for state of a shape of its own that readers would take for a shard, or for
/// all, of its parameter: it has one dim and as many elements.
void refuse_lookalikes(const Manifest& source, const Target& target,
                       const TargetOptimizer& optimizer, std::int64_t world_size);

/// Why some backing parameter cannot keep its state as one; "" where each can, and then the leaves
/// of its parameters stand in one order.
std::string unite_backings(const Target& target, TargetOptimizer& optimizer);

}  // namespace tessera::fairscale

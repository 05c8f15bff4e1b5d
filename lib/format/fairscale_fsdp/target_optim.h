#pragma once
// The optimizer of a state in the form that FairScale's files need: per parameter, with every leaf
// classified. Pure.
#include <tessera/state/optim_state.h>

#include <string>
#include <vector>

#include "lib/format/fairscale_fsdp/target.h"

namespace tessera::fairscale {

struct TargetLeaf {
  enum class Form : std::uint8_t {
    kSharded,  // a tensor of its parameter's shape
    kScalar,   // a tensor without dims: every rank's
    kTensor,   // a tensor of another shape: every rank's
    kList,     // tensors, one for each rank of the source
    kValue,
  };
  std::string name;
  Form form = Form::kValue;
  std::vector<std::uint32_t> tensors;
  Value value;
};

struct TargetGroup {
  ValueDict options;
  std::vector<std::size_t> members;  // in Target::parameters
};

/// A leaf of a tensor of the model that is no parameter: DeepSpeed keeps an fp32 of buffers.
struct BufferLeaf {
  std::string fqn;
  std::string name;
  std::size_t entry = 0;
};

struct TargetOptimizer {
  bool present = false;
  std::string root;
  std::vector<std::vector<TargetLeaf>> state;  // by parameter; empty: none
  std::vector<std::int64_t> group;             // by parameter; -1: listed in none
  std::vector<TargetGroup> groups;
  std::vector<std::size_t> extra;  // entries: other keys of the optimizer's dict
  std::vector<std::size_t> maps;   // entries: param_id_map and its like, which are made anew
  std::vector<BufferLeaf> of_buffers;
};

/// `optimizers`: canonical_optim_states(). `kept`: by entry; entries that are left out are false.
/// Throws kUnsupported for several optimizers, or state of parameters that the model does not have.
TargetOptimizer target_optimizer(const Manifest& source, const Roles& roles,
                                 const std::vector<OptimState>& optimizers, const Target& target,
                                 const std::vector<bool>& kept);

/// Throws kUnsupported for state of a shape of its own that readers would take for a shard, or for
/// all, of its parameter: it has one dim and as many elements.
void refuse_lookalikes(const Manifest& source, const Target& target,
                       const TargetOptimizer& optimizer, std::int64_t world_size);

/// True when each backing parameter can keep its state as one: its parameters have the same leaves,
/// the same numbers and one group. `why_not`: the first difference.
bool fits_backings(const Manifest& source, const Target& target, const TargetOptimizer& optimizer,
                   std::string& why_not);

}  // namespace tessera::fairscale

#pragma once
// The optimizer of an engine without ZeRO. In fp32 it is torch's own. Under fp16 and bf16 DeepSpeed
// wraps it, and its masters stand beside it:
//
//   {"optimizer_state_dict": {"state": {id: ...}, "param_groups": [...]},
//    "fp32_groups": [[master of each id of group 0], ...], "cur_scale", "dynamic_loss_scale", ...}
//
// Source: deepspeed/runtime/fp16/unfused_optimizer.py (0.19.8).
#include <tessera/state/value.h>

#include <optional>

namespace tessera::deepspeed {

struct PlainOptimizer {
  Value optimizer;  // torch's dict, each id's state with its master as `fp32`
  Value fields;     // the wrapper's own: a dict
};

/// nullopt: it is not wrapped, or (fused_optim.h) in flat buffers. kCorrupt: masters that are
/// not those of the groups.
std::optional<PlainOptimizer> unwrap_optimizer(const Value& stored);

}  // namespace tessera::deepspeed

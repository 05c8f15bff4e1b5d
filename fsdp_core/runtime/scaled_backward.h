#pragma once
// Whether the backward in progress began at a loss that a ShardedGradScaler scaled. Per thread.

namespace tessera::fsdp::detail {

/// From a hook on the scaled loss.
void mark_scaled_backward();
bool backward_is_scaled();

}  // namespace tessera::fsdp::detail

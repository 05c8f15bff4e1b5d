#pragma once
// Calls that all ranks make together, outside of forward and backward. If one rank throws half-way,
// the units' groups are aborted, so that the other ranks fail at once instead of waiting for it.
#include <tessera/base/error.h>

#include <memory>
#include <vector>

#include "fsdp_core/runtime/root.h"

namespace tessera::fsdp {

/// Runs `body`, which is part of the call named `call` over `units`. If it throws, the groups of
/// `units` are aborted, no unit runs until reset(), and the exception is rethrown. Throw what every
/// rank finds out by itself (a wrong argument, say) before this call instead.
template <class Body>
void run_or_abort_peers(const std::vector<std::shared_ptr<detail::Unit>>& units, const char* call,
                        Body&& body) {
  try {
    body();
  } catch (...) {
    Status status = current_exception_status();
    if (status.context.operation.empty()) status.context.operation = call;
    for (const auto& unit : units) unit->root()->fail_step(status, /*drop_gradients=*/false);
    throw;
  }
}

}  // namespace tessera::fsdp

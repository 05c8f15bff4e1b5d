#pragma once
// Calls that all ranks make together, outside of forward and backward: what one of them throws in
// the middle of it, the others are told at once, since they wait there.
#include <tessera/base/error.h>

#include <memory>
#include <vector>

#include "fsdp_core/runtime/root.h"

namespace tessera::fsdp {

/// Runs `body`, of the call `call` over `units`. What it throws passes on, and no unit runs until
/// reset. Errors that every rank finds alike belong before it.
template <class Body>
void told_to_peers(const std::vector<std::shared_ptr<detail::Unit>>& units, const char* call,
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

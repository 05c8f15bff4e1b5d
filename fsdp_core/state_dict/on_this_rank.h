#pragma once
// Errors of state dicts say where they were seen: the rank, where the model has units, and the
// call.
#include <tessera/base/error.h>

#include <utility>

#include "fsdp_core/runtime/units_of.h"

namespace tessera::fsdp {

template <class Body>
decltype(auto) on_this_rank(const ModuleRef& model, const char* call, Body&& body) {
  try {
    return std::forward<Body>(body)();
  } catch (const Error& error) {
    Status status = error.status();
    if (status.context.operation.empty()) status.context.operation = call;
    const NamedUnits units = named_units(*model);
    if (status.context.rank < 0 && !units.empty())
      status.context.rank = units.front().second->comms().shard->global_rank();
    throw Error(std::move(status));
  }
}

}  // namespace tessera::fsdp

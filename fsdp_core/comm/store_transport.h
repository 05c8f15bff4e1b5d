#pragma once
// A world whose ranks found each other through a store: processes over TCP, or threads over one
// table.
#include "fsdp_core/comm/gloo_comm.h"
#include "fsdp_core/comm/transport.h"

namespace tessera::fsdp {

/// `backend`: "gloo" or "nccl". `hosts_timeout`: of each call of the groups between hosts.
std::unique_ptr<Transport> store_transport(const std::string& backend, StoreLink link,
                                           std::chrono::milliseconds hosts_timeout, int rank,
                                           int size, int local_rank);

/// The backend to use for what the user asked for ("": the best there is). Throws kInvalidArgument
/// for an unknown name, kUnsupported for "nccl" where the build or the machine has none.
std::string choose_backend(const std::string& asked);

}  // namespace tessera::fsdp

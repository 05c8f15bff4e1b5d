#pragma once
// Collectives over c10d's NCCL backend, issued on the current stream. Linked only with a LibTorch
// that has CUDA (then TESSERA_FSDP_NCCL is defined).
#include "fsdp_core/comm/gloo_comm.h"

namespace tessera::fsdp {

std::shared_ptr<Communicator> make_nccl(const Communicator::Identity& identity,
                                        std::uint64_t generation, const StoreLink& link,
                                        int device_index);

}  // namespace tessera::fsdp

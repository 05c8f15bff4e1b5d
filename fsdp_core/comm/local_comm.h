#pragma once
// Groups that need no peers: one rank alone, and the counting fake.
#include <tessera/fsdp/communicator.h>

namespace tessera::fsdp {

std::shared_ptr<Communicator> make_single(Communicator::Identity identity);
std::shared_ptr<Communicator> make_fake(Communicator::Identity identity);

/// dst = src, elements of one dtype on one device; nothing where both are the same memory.
void copy_elements(at::Tensor& dst, const at::Tensor& src);

}  // namespace tessera::fsdp

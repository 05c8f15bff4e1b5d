#pragma once
// Which tensors are parameters of a unit already, either identity: a parameter shared by two units
// would be sharded twice. Process-wide, thread-safe; tests run ranks as threads.
#include <ATen/core/Tensor.h>

#include <optional>
#include <string>

namespace tessera::fsdp {

/// Until `forget`.
void own(const at::Tensor& tensor, const std::string& fqn);
void forget(const at::Tensor& tensor);
/// The FQN it was owned under.
std::optional<std::string> owner_of(const at::Tensor& tensor);

}  // namespace tessera::fsdp

#include "fsdp_core/params/ownership.h"

#include <mutex>
#include <unordered_map>

namespace tessera::fsdp {
namespace {

std::mutex mutex;
std::unordered_map<const c10::TensorImpl*, std::string>& owned() {
  static auto* tensors = new std::unordered_map<const c10::TensorImpl*, std::string>;
  return *tensors;
}

}  // namespace

void own(const at::Tensor& tensor, const std::string& fqn) {
  std::lock_guard lock(mutex);
  owned()[tensor.unsafeGetTensorImpl()] = fqn;
}

void forget(const at::Tensor& tensor) {
  std::lock_guard lock(mutex);
  owned().erase(tensor.unsafeGetTensorImpl());
}

std::optional<std::string> owner_of(const at::Tensor& tensor) {
  std::lock_guard lock(mutex);
  auto found = owned().find(tensor.unsafeGetTensorImpl());
  if (found == owned().end()) return std::nullopt;
  return found->second;
}

}  // namespace tessera::fsdp

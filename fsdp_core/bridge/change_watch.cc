#include "fsdp_core/bridge/change_watch.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace tessera::fsdp {
namespace {

std::uint32_t version_of(const at::Tensor& tensor) {
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  return impl->is_inference() ? 0 : impl->version_counter().current_version();
}

/// A digest of the bits of kSamples elements, spread evenly over the `numel` elements of `size`
/// bytes each that begin at `memory`.
std::uint64_t digest_of_samples(const void* memory, std::int64_t numel, std::size_t size) {
  std::uint64_t digest = 0;
  const std::int64_t count = std::min(numel, ChangeWatch::kSamples);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t at = count == 1 ? 0 : i * (numel - 1) / (count - 1);
    const auto* element =
        static_cast<const std::byte*>(memory) + static_cast<std::size_t>(at) * size;
    for (std::size_t done = 0; done < size; done += sizeof(std::uint64_t)) {
      std::uint64_t bits = 0;
      std::memcpy(&bits, element + done, std::min(size - done, sizeof(bits)));
      // Each step can be undone: where one sample alone changed, the digest did.
      digest = (digest ^ bits) * 0x9E3779B97F4A7C15U;
      digest ^= digest >> 32;
    }
  }
  return digest;
}

std::uint64_t digest_of(const at::Tensor& tensor, const void* memory) {
  return tensor.is_cpu() ? digest_of_samples(memory, tensor.numel(), tensor.element_size()) : 0;
}

const void* memory_of(const at::Tensor& tensor) {
  return tensor.numel() == 0 ? nullptr : tensor.const_data_ptr();
}

}  // namespace

void ChangeWatch::note(Watched& each) {
  each.version = version_of(each.tensor);
  each.samples = digest_of(each.tensor, each.memory);
}

void ChangeWatch::add(std::string name, const at::Tensor& tensor) {
  Watched& each = watched_.emplace_back();
  each.name = std::move(name);
  each.tensor = tensor;
  each.storage = tensor.storage();
  each.memory = memory_of(tensor);
  note(each);
}

void ChangeWatch::restart() {
  for (Watched& each : watched_) note(each);
}

std::string ChangeWatch::changed() const {
  for (const Watched& each : watched_)
    if (version_of(each.tensor) != each.version || memory_of(each.tensor) != each.memory ||
        digest_of(each.tensor, each.memory) != each.samples)
      return each.name;
  return {};
}

}  // namespace tessera::fsdp

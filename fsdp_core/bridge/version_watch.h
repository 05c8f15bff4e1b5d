#pragma once
// VersionWatch: whether tensors whose memory a live state borrows have been written since it was
// saved, by LibTorch's version counters. Keeps the tensors, and nothing else, alive. changed() may
// be called from another thread than the one that trains.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace tessera::fsdp {

class VersionWatch {
 public:
  void add(std::string name, const at::Tensor& tensor) {
    watched_.push_back({std::move(name), tensor, version_of(tensor)});
  }
  /// From now on.
  void restart() {
    for (Watched& each : watched_) each.version = version_of(each.tensor);
  }
  /// The first that was written; "": none.
  std::string changed() const {
    for (const Watched& each : watched_)
      if (version_of(each.tensor) != each.version) return each.name;
    return {};
  }

 private:
  struct Watched {
    std::string name;
    at::Tensor tensor;
    std::uint32_t version;
  };
  static std::uint32_t version_of(const at::Tensor& tensor) {
    c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
    return impl->is_inference() ? 0 : impl->version_counter().current_version();
  }
  std::vector<Watched> watched_;
};

}  // namespace tessera::fsdp

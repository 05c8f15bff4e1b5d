#pragma once
// OutsideInference: tensors made while it lives are ordinary ones, though the caller evaluates
// under c10::InferenceMode: they outlive that, and are trained. Gradients are off meanwhile. Per
// thread.
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

namespace tessera::fsdp {

class OutsideInference {
  c10::InferenceMode off_{false};
  c10::NoGradGuard no_grad_;

 public:
  OutsideInference() = default;
  OutsideInference(const OutsideInference&) = delete;
  OutsideInference& operator=(const OutsideInference&) = delete;
};

}  // namespace tessera::fsdp

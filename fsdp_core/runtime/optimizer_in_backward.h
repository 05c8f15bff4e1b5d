#pragma once
// StepInBackward: the optimizer of one unit, stepped by the gradient reducer. See the public header
// for what goes with it and what does not.
#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

namespace torch::optim {
class Optimizer;
}

namespace tessera::fsdp::detail {

class Unit;
class Use;

class StepInBackward {
 public:
  explicit StepInBackward(std::shared_ptr<torch::optim::Optimizer> optimizer);
  ~StepInBackward();
  StepInBackward(const StepInBackward&) = delete;
  StepInBackward& operator=(const StepInBackward&) = delete;

  const std::shared_ptr<torch::optim::Optimizer>& optimizer() const { return optimizer_; }

  /// Throws: gradients for parameters that are not those of the forward, or scaled ones.
  void check_backward(const Unit& unit, const Use& use) const;
  /// On the host, when a step is issued: forwards up to here had other parameters.
  void issue() { ++issued_; }
  std::uint64_t issued() const { return issued_; }
  /// On the reduction stream: steps and drops the shard gradients.
  void step(Unit& unit);

  /// Whether it stepped in the backward in progress, or in the one that failed.
  bool stepped() const { return stepped_; }
  void forget_step() { stepped_ = false; }

 private:
  std::shared_ptr<torch::optim::Optimizer> optimizer_;
  std::uint64_t issued_ = 0;
  std::atomic<bool> stepped_ = false;
};

/// Whether a unit steps it.
bool steps_in_backward(const torch::optim::Optimizer& optimizer);

/// Throws kUnsupported, naming `call`, where a unit steps in backward.
void refuse_steps_in_backward(const std::vector<std::shared_ptr<Unit>>& units, const char* call);

}  // namespace tessera::fsdp::detail

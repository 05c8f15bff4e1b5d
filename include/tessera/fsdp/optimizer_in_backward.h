#pragma once
// Optimizer steps inside backward: each unit steps as soon as its gradients are reduced, which are
// then freed, so that the shard gradients of one unit exist at a time.
//
//   fsdp::optimizer_in_backward(model, [](std::vector<torch::Tensor> params) {
//     return std::make_unique<torch::optim::AdamW>(params, 1e-3);
//   });
//   loss(model->forward(x)).backward();   // parameters are the next step's when it returns
//   fsdp::state_dict(model, fsdp::optimizers_in_backward(model));   // as of one optimizer
//
// Bit-equal to one step after backward for optimizers that treat parameters apart (SGD, Adam,
// AdamW; FusedAdamW up to rounding). Refused by name, as the gradients are gone or not whole:
// clip_grad_norm_, ShardedGradScaler, NoSync and the flags behind it, and a second backward through
// a forward made before the step. A backward that fails may have stepped some units: fsdp::reset
// says which. An order check that compares at the end of backward comes after the steps.
#include <tessera/fsdp/training.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace tessera::fsdp {

/// Makes the optimizer of one unit from its shard parameters. Called once a unit, in module order.
using OptimizerFactory =
    std::function<std::shared_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)>;

/// A unit's optimizer, to set its learning rate; a list of them goes into fsdp::state_dict.
struct UnitOptimizer {
  std::string unit;  // FQN; "" is the root
  std::shared_ptr<torch::optim::Optimizer> optimizer;
  std::vector<std::pair<std::string, at::Tensor>>
      parameters;  // FQN and shard, in the factory's order
};

/// Makes an optimizer for every unit below `module` that holds parameters. Returns what
/// optimizers_in_backward() returns from then on. Throws, with nothing changed: units that have one already, gradients waiting for a
/// step, synchronisation switched off, a factory that gives no optimizer, one without a trainable
/// parameter of the unit or with a foreign one, L-BFGS.
std::vector<UnitOptimizer> optimizer_in_backward(const ModuleRef& module,
                                                 const OptimizerFactory& factory);

/// In module order, children first; empty where optimizer_in_backward was not called.
std::vector<UnitOptimizer> optimizers_in_backward(const ModuleRef& module);

}  // namespace tessera::fsdp

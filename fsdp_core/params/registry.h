#pragma once
// The parameter registry of a torch::nn::Module, which it keeps protected.
#include <torch/nn/module.h>

namespace tessera::fsdp {

struct Registry : torch::nn::Module {
  static torch::OrderedDict<std::string, torch::Tensor>& parameters(torch::nn::Module& module) {
    return module.*(&Registry::parameters_);
  }
};

}  // namespace tessera::fsdp

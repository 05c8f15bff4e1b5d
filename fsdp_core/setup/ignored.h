#pragma once
// What options.ignored_modules and options.ignored_parameters leave alone: nothing of it is
// sharded, cast, broadcast, moved, given memory or reduced.
//
//   modules   those named and all below them, but for units below them, which have options of their
//             own; and those that units below the module leave alone
//   tensors   the parameters named, and every parameter and buffer of those modules, wherever else
//             they are registered
#include <ATen/core/Tensor.h>
#include <tessera/fsdp/options.h>

#include <cstdint>
#include <string>
#include <unordered_set>

namespace tessera::fsdp {

class Ignored {
 public:
  /// By `options`, for the tree below `module`. Throws kInvalidArgument: an empty module or tensor
  /// among them, and what a unit owns already.
  Ignored(const torch::nn::Module& module, const Options& options);

  bool holds(const torch::nn::Module& module) const { return modules_.contains(&module); }
  bool holds(const at::Tensor& tensor) const {
    return tensors_.contains(tensor.unsafeGetTensorImpl());
  }

 private:
  enum class Owned : std::uint8_t { kRefused, kPassedOver };
  void add(const Options& options, Owned owned);
  void add_below(const torch::nn::Module& module, const std::string& fqn, Owned owned);
  void add_of_units(const torch::nn::Module& module);

  std::unordered_set<const torch::nn::Module*> modules_, seen_;
  std::unordered_set<const c10::TensorImpl*> tensors_;
};

/// `options`, in which what `around` ignores is ignored too.
Options with_ignored(Options options, const Options& around);

}  // namespace tessera::fsdp

#pragma once
// Keys of an optimizer's groups that its C++ options have no field for (initial_lr, foreach): a
// group read from a checkpoint keeps them, so that the next save writes them back.
//
// They live in the group itself: its options object becomes one of a derived class that carries
// them. Code that casts the options to its own class goes on working; a reference to the options
// taken before the load does not.
#include <tessera/state/value.h>
#include <torch/optim/optimizer.h>

#include <memory>

namespace tessera::fsdp {

struct KeptKeys {
  ValueDict kept;
  virtual ~KeptKeys() = default;
};

template <class O>
class OptionsWithKept final : public O, public KeptKeys {
 public:
  OptionsWithKept(const O& options, ValueDict keys) : O(options) { kept = std::move(keys); }

 private:
  std::unique_ptr<torch::optim::OptimizerOptions> clone() const override {
    return std::make_unique<OptionsWithKept>(*this);
  }
};

/// What `options` carries; none: empty.
inline ValueDict kept_keys(const torch::optim::OptimizerOptions& options) {
  const auto* carrier = dynamic_cast<const KeptKeys*>(&options);
  return carrier ? carrier->kept : ValueDict{};
}

}  // namespace tessera::fsdp

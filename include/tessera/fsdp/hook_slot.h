#pragma once
// hook_slot: makes a stock module that already sits in a plain torch::nn::Sequential a possible
// unit.
//
//   torch::nn::Sequential net(torch::nn::Linear(4, 8), torch::nn::ReLU(), torch::nn::Linear(8, 2));
//   fsdp::hook_slot(net, 0);
//   fsdp::fully_shard(net[0], options);
//
// The slot then holds a Slot that calls the module that was there and shows its parameters, buffers
// and children under their own names: no FQN changes, handles to the module that the program holds
// still work. What changes: net[0] is the Slot, so that net->at<LinearImpl>(0) and as<Linear>() no
// longer find a LinearImpl. Where the model's source can be edited,
// fsdp::Holder<torch::nn::LinearImpl> is simpler.
//
// Template argument: the signature of the module's forward, Tensor(Tensor) for most.
#include <tessera/fsdp/module.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstddef>
#include <memory>

namespace tessera::fsdp {
namespace detail {

/// Shows what `inner` registered directly, and passes on the virtual calls.
class SlotBase : public torch::nn::Module, public HookPoint {
 public:
  explicit SlotBase(torch::nn::AnyModule inner);
  void train(bool on = true) override;
  bool is_training() const noexcept override { return inner_module_->is_training(); }
  void to(torch::Device device, torch::Dtype dtype, bool non_blocking = false) override;
  void to(torch::Dtype dtype, bool non_blocking = false) override;
  void to(torch::Device device, bool non_blocking = false) override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;
  void pretty_print(std::ostream& stream) const override { inner_module_->pretty_print(stream); }
  bool is_serializable() const override { return inner_module_->is_serializable(); }
  const std::shared_ptr<torch::nn::Module>& inner_module() const { return inner_module_; }

 protected:
  torch::nn::AnyModule inner_;

 private:
  std::shared_ptr<torch::nn::Module> inner_module_;
};

template <class Signature>
class Slot;
template <class R, class... P>
class Slot<R(P...)> : public SlotBase {
 public:
  using SlotBase::SlotBase;
  R forward(P... arguments) {
    if (!unit) return inner_.template forward<R>(std::move(arguments)...);
    std::tuple<Kept<P>...> kept{keep<P>(arguments)...};
    return intercepted<R>(*this, kept, [this](auto&... each) -> R {
      return inner_.template forward<R>(std::move(each)...);
    });
  }
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override {
    if (unit) refuse_module_call("clone", *this);
    return std::make_shared<Slot>(inner_.clone(device));
  }
};

/// The name under which `sequential` registered slot `index`. Throws kOutOfRange, and
/// kInvalidArgument where slot and registry disagree.
std::string slot_name(torch::nn::SequentialImpl& sequential, std::size_t index);

}  // namespace detail

/// Returns the module that is in the slot now, for fully_shard. A slot that can already be a unit
/// is left as it is. Call it before anything in the slot is sharded; later it throws
/// kInvalidArgument.
template <class Signature = torch::Tensor(torch::Tensor)>
std::shared_ptr<torch::nn::Module> hook_slot(torch::nn::SequentialImpl& sequential,
                                             std::size_t index) {
  const std::string name = detail::slot_name(sequential, index);
  torch::nn::AnyModule& any = *(sequential.begin() + static_cast<std::ptrdiff_t>(index));
  if (dynamic_cast<HookPoint*>(any.ptr().get()) != nullptr) return any.ptr();
  auto slot = std::make_shared<detail::Slot<Signature>>(any);
  any = torch::nn::AnyModule(slot);
  sequential.replace_module(name, std::shared_ptr<torch::nn::Module>(slot));
  return slot;
}
template <class Signature = torch::Tensor(torch::Tensor)>
std::shared_ptr<torch::nn::Module> hook_slot(torch::nn::Sequential& sequential, std::size_t index) {
  return hook_slot<Signature>(*sequential, index);
}

}  // namespace tessera::fsdp

#pragma once
// How a unit's forward is intercepted: the module a holder contains is a class derived from the user's
// Impl whose `forward` shadows it, so that holder(x), holder->forward(x), Sequential and AnyModule all
// come through here.
//
//   struct BlockImpl : torch::nn::Module { torch::Tensor forward(torch::Tensor x); };
//   FSDP_MODULE(Block);                              // instead of TORCH_MODULE(Block)
//   fsdp::Holder<torch::nn::LinearImpl> linear(4, 4);  // instead of torch::nn::Linear
//
// Until fully_shard is called on it such a module is the plain one: a call costs one pointer test.
// Tensors in arguments and results are found through Tensor, optional, vector, array, pair, tuple,
// map, unordered_map and OrderedDict-like containers of them; for a type of your own declare beside it
//   template <class F> void visit_tensors(MyType& value, F&& visit) { visit(value.member); ... }
#include <tessera/fsdp/tensor_visitor.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

namespace tessera::fsdp {
namespace detail {

class Unit;

/// One intercepted forward. Destroyed without finish() (an exception passed): undone.
class ForwardCall {
 public:
  explicit ForwardCall(const std::shared_ptr<Unit>& unit);
  ForwardCall(const ForwardCall&) = delete;
  ForwardCall& operator=(const ForwardCall&) = delete;
  ~ForwardCall();
  /// Gathers; casts `inputs` in place where the unit's precision asks for it.
  void begin(const TensorPointers& inputs);
  /// Registers the backward hooks on `outputs` (casts them where asked) and frees the parameters.
  void finish(const TensorPointers& outputs);

 private:
  std::shared_ptr<Unit> unit_;
  void* use_ = nullptr;
  bool finished_ = false;
};

[[noreturn]] void refuse_module_call(const char* call, const torch::nn::Module& module);

/// An argument kept for the call: values and const references as own copies, others as they are.
template <class P>
using Kept = std::conditional_t<
    std::is_lvalue_reference_v<P> && (!std::is_const_v<std::remove_reference_t<P>> ||
                                      !std::is_copy_constructible_v<std::decay_t<P>>),
    P, std::decay_t<P>>;

}  // namespace detail

/// What fully_shard finds in a module that can be a unit.
class HookPoint {
 public:
  virtual ~HookPoint() = default;
  std::shared_ptr<detail::Unit> unit;  // null: not sharded
};

namespace detail {

template <class Result, class... Kept, class Body>
Result intercepted(const std::shared_ptr<Unit>& unit, std::tuple<Kept...>& arguments, Body&& body) {
  ForwardCall call(unit);
  TensorPointers inputs;
  std::apply([&](auto&... each) { (collect_tensors(each, inputs), ...); }, arguments);
  call.begin(inputs);
  if constexpr (std::is_void_v<Result>) {
    body(arguments);
    call.finish({});
  } else {
    Result result = body(arguments);
    TensorPointers outputs;
    collect_output_tensors(result, outputs);
    call.finish(outputs);
    return result;
  }
}

/// The virtual calls of torch::nn::Module that would see shards where full parameters are meant.
template <class M>
class GuardedModule : public M, public HookPoint {
 public:
  using M::M;
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override {
    if (unit) refuse_module_call("clone", *this);
    return M::clone(device);
  }
  void to(torch::Device device, torch::Dtype dtype, bool non_blocking = false) override {
    if (unit) refuse_module_call("to", *this);
    M::to(device, dtype, non_blocking);
  }
  void to(torch::Dtype dtype, bool non_blocking = false) override {
    if (unit) refuse_module_call("to", *this);
    M::to(dtype, non_blocking);
  }
  void to(torch::Device device, bool non_blocking = false) override {
    if (unit) refuse_module_call("to", *this);
    M::to(device, non_blocking);
  }
  void save(torch::serialize::OutputArchive& archive) const override {
    if (unit) refuse_module_call("save", *this);
    M::save(archive);
  }
  void load(torch::serialize::InputArchive& archive) override {
    if (unit) refuse_module_call("load", *this);
    M::load(archive);
  }
};

/// Overloaded, template or defaulted forwards: forwards whatever it is called with.
template <class M, class Signature>
class Hooked : public GuardedModule<M> {
 public:
  using GuardedModule<M>::GuardedModule;
  template <class... A>
  auto forward(A&&... arguments)
      -> decltype(std::declval<M&>().forward(std::forward<A>(arguments)...)) {
    using Result = decltype(std::declval<M&>().forward(std::forward<A>(arguments)...));
    if (!this->unit) return M::forward(std::forward<A>(arguments)...);
    std::tuple<Kept<A&&>...> kept(std::forward<A>(arguments)...);
    return intercepted<Result>(this->unit, kept, [this](auto& all) -> Result {
      return std::apply([this](auto&... each) -> Result { return M::forward(std::forward<A>(static_cast<A&&>(each))...); }, all);
    });
  }
};

/// The exact signature, so that AnyModule can deduce it.
template <class M, class R, class C, class... P>
class Hooked<M, R (C::*)(P...)> : public GuardedModule<M> {
 public:
  using GuardedModule<M>::GuardedModule;
  R forward(P... arguments) {
    if (!this->unit) return M::forward(std::forward<P>(arguments)...);
    std::tuple<Kept<P>...> kept(std::forward<P>(arguments)...);
    return intercepted<R>(this->unit, kept, [this](auto& all) -> R {
      return std::apply([this](auto&... each) -> R { return M::forward(static_cast<P&&>(each)...); }, all);
    });
  }
};

template <class M, class R, class C, class... P>
class Hooked<M, R (C::*)(P...) const> : public GuardedModule<M> {
 public:
  using GuardedModule<M>::GuardedModule;
  R forward(P... arguments) {
    if (!this->unit) return M::forward(std::forward<P>(arguments)...);
    std::tuple<Kept<P>...> kept(std::forward<P>(arguments)...);
    return intercepted<R>(this->unit, kept, [this](auto& all) -> R {
      return std::apply([this](auto&... each) -> R { return M::forward(static_cast<P&&>(each)...); }, all);
    });
  }
};

template <class M, class = void>
struct SignatureOf {
  using type = void;
};
template <class M>
struct SignatureOf<M, std::void_t<decltype(&M::forward)>> {
  using type = decltype(&M::forward);
};

}  // namespace detail

/// The class that holders made by FSDP_MODULE and Holder contain.
template <class Impl>
using Module = detail::Hooked<Impl, typename detail::SignatureOf<Impl>::type>;

/// Holder<torch::nn::LinearImpl> is used as torch::nn::Linear is.
template <class Impl>
class Holder : public torch::nn::ModuleHolder<Module<Impl>> {
 public:
  using torch::nn::ModuleHolder<Module<Impl>>::ModuleHolder;
};

}  // namespace tessera::fsdp

/// FSDP_MODULE(Block): the holder of BlockImpl, instead of TORCH_MODULE(Block).
#define FSDP_MODULE(Name)                                                                   \
  class Name : public torch::nn::ModuleHolder<::tessera::fsdp::Module<Name##Impl>> {         \
   public:                                                                                   \
    using torch::nn::ModuleHolder<::tessera::fsdp::Module<Name##Impl>>::ModuleHolder;        \
    using Impl [[maybe_unused]] = ::tessera::fsdp::Module<Name##Impl>;                       \
  }

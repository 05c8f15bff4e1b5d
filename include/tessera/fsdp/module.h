#pragma once
// How a unit's forward is intercepted: the module a holder contains is a class derived from the
// user's Impl whose `forward` shadows it, so that holder(x), holder->forward(x), Sequential and
// AnyModule all come through here.
//
//   struct BlockImpl : torch::nn::Module { torch::Tensor forward(torch::Tensor x); };
//   FSDP_MODULE(Block);                              // instead of TORCH_MODULE(Block)
//   fsdp::Holder<torch::nn::LinearImpl> linear(4, 4);  // instead of torch::nn::Linear
//
// Until fully_shard is called on it such a module is the plain one: a call costs one pointer test.
// Any signature will do: several arguments, default arguments, overloads, templates, tuples as
// results. A call of another name (a method of yours, Impl::forward named with its class,
// as<BlockImpl>()->forward) is not intercepted; it finds parameters that raise an error when
// touched.
//
// Tensors in arguments and results are found as tensor_visitor.h says. Arguments are the caller's:
// where precision asks for a cast, forward sees the cast tensor, and the caller keeps his own.
#include <tessera/fsdp/hooked_module.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <type_traits>
#include <utility>

namespace tessera::fsdp {

/// The class of the objects that FSDP_MODULE and Holder make.
template <class Impl>
using Module = typename detail::ModuleOf<Impl>::type;

namespace detail {

/// Where Module has more than the exact forward, LibTorch sees its base, which AnyModule can take.
template <class Impl>
inline constexpr bool has_short_calls = !std::is_same_v<Module<Impl>, Exact<Impl>>;

template <class Impl, bool = has_short_calls<Impl>>
class HolderBase : public torch::nn::ModuleHolder<Module<Impl>> {
 public:
  using torch::nn::ModuleHolder<Module<Impl>>::ModuleHolder;
};

template <class Impl>
class HolderBase<Impl, true> : public torch::nn::ModuleHolder<Exact<Impl>> {
  using Base = torch::nn::ModuleHolder<Exact<Impl>>;

 public:
  HolderBase() : Base(std::shared_ptr<Exact<Impl>>(std::make_shared<Module<Impl>>())) {}
  HolderBase(std::nullptr_t) : Base(nullptr) {}
  HolderBase(std::shared_ptr<Exact<Impl>> module) : Base(std::move(module)) {
    if (this->impl_ && dynamic_cast<Module<Impl>*>(this->impl_.get()) == nullptr)
      refuse_module_call("hold", *this->impl_);
  }
  template <class Head, class... Tail>
    requires(!(sizeof...(Tail) == 0 &&
               (torch::detail::is_module_holder_of<Head, Exact<Impl>>::value ||
                std::is_convertible_v<Head, std::shared_ptr<Exact<Impl>>>)))
  explicit HolderBase(Head&& head, Tail&&... tail)
      : Base(std::shared_ptr<Exact<Impl>>(std::make_shared<Module<Impl>>(
            std::forward<Head>(head), std::forward<Tail>(tail)...))) {}

  Module<Impl>* get() { return static_cast<Module<Impl>*>(Base::get()); }
  const Module<Impl>* get() const { return static_cast<const Module<Impl>*>(Base::get()); }
  Module<Impl>* operator->() { return get(); }
  const Module<Impl>* operator->() const { return get(); }
  Module<Impl>& operator*() { return *get(); }
  const Module<Impl>& operator*() const { return *get(); }
};

}  // namespace detail

/// Holder<torch::nn::LinearImpl> is used as torch::nn::Linear is.
template <class Impl>
class Holder : public detail::HolderBase<Impl> {
 public:
  using detail::HolderBase<Impl>::HolderBase;

  /// As ->forward(...), overloads and default arguments included.
  template <class... A>
  auto operator()(A&&... arguments)
      -> decltype(std::declval<Module<Impl>&>().forward(std::forward<A>(arguments)...)) {
    return this->get()->forward(std::forward<A>(arguments)...);
  }
};

}  // namespace tessera::fsdp

/// FSDP_MODULE(Block): the holder of BlockImpl, instead of TORCH_MODULE(Block).
#define FSDP_MODULE(Name)                                              \
  class Name : public ::tessera::fsdp::Holder<Name##Impl> {            \
   public:                                                             \
    using ::tessera::fsdp::Holder<Name##Impl>::Holder;                 \
    using Impl [[maybe_unused]] = ::tessera::fsdp::Module<Name##Impl>; \
  }

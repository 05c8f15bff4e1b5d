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
#include <tessera/fsdp/tensor_visitor.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

namespace tessera::fsdp {
namespace detail {

class Unit;
class Use;

/// One intercepted forward. Destroyed without finish() (an exception passed): undone.
class ForwardCall {
 public:
  explicit ForwardCall(std::shared_ptr<Unit> unit);
  ForwardCall(const ForwardCall&) = delete;
  ForwardCall& operator=(const ForwardCall&) = delete;
  ~ForwardCall();
  /// Gathers; casts `inputs` in place where the unit's precision asks for it.
  void begin(const TensorPointers& inputs);
  /// Registers the backward hooks on `outputs` (casts them where asked) and frees the parameters.
  void finish(const TensorPointers& outputs);

 private:
  std::shared_ptr<Unit> unit_;
  std::shared_ptr<Use> use_;  // set by begin()
  bool finished_ = false;
};

/// Throws kUnsupported naming the class, and the call to make instead of `call` on a sharded
/// module.
[[noreturn]] void refuse_module_call(const char* call, const torch::nn::Module& module);
/// Throws kUnsupported: the unit's forward returns a reference.
[[noreturn]] void refuse_reference_result(const std::type_info& type);
/// The name that module.name() gives from now on, unless it was given one. Its value is of no
/// interest.
bool name_after(const torch::nn::Module& module, const std::type_info& type);

/// How an argument of type P is kept for the call: const references to tensors as copies of the
/// handles, so that they can be replaced; all else where it is.
template <class P>
struct KeptAs {
  using Value = std::remove_cvref_t<P>;
  static constexpr bool copied = std::is_lvalue_reference_v<P> &&
                                 std::is_const_v<std::remove_reference_t<P>> &&
                                 holds_tensors<Value>() && copyable<Value>();
  using type = std::conditional_t<copied, Value, std::remove_reference_t<P>&>;
};
template <class P>
  requires std::is_same_v<std::remove_cvref_t<P>, at::TensorList>
struct KeptAs<P> {
  using type = std::vector<at::Tensor>;
};
template <class P>
using Kept = typename KeptAs<P>::type;
template <class P>
Kept<P> keep(std::remove_reference_t<P>& argument) {
  if constexpr (std::is_same_v<std::remove_cvref_t<P>, at::TensorList>)
    return argument.vec();
  else
    return argument;
}

/// The argument as forward takes it. A shared pointer is copied, not moved: what it leads to is
/// found again after the call.
template <class P, class K>
decltype(auto) pass(K& kept) {
  using Value = std::remove_cvref_t<P>;
  if constexpr (std::is_same_v<Value, at::TensorList>)
    return at::TensorList(kept);
  else if constexpr (!std::is_lvalue_reference_v<P> && requires { Contents<Value>::shared; })
    return Value(kept);
  else
    return static_cast<P&&>(kept);
}

/// Gives back to the caller's variables the tensors that were replaced for the call, where the body
/// left the replacement in place.
template <class Arguments>
class CallerTensors {
 public:
  CallerTensors(Arguments& arguments, const TensorPointers& inputs) : arguments_(arguments) {
    for (const at::Tensor* input : inputs) before_.push_back(*input);
  }
  CallerTensors(const CallerTensors&) = delete;
  CallerTensors& operator=(const CallerTensors&) = delete;
  ~CallerTensors() {
    if (after_.empty()) return;
    TensorPointers now;  // found again: the body may have moved what holds them
    std::apply([&](auto&... each) { (collect_tensors(each, now), ...); }, arguments_);
    for (at::Tensor* tensor : now)
      for (std::size_t i = 0; i < after_.size(); ++i)
        if (tensor->is_same(after_[i]) && !tensor->is_same(before_[i])) {
          *tensor = before_[i];
          break;
        }
  }
  void replaced(const TensorPointers& inputs) {
    bool any = false;
    for (std::size_t i = 0; i < inputs.size(); ++i) any |= !inputs[i]->is_same(before_[i]);
    if (!any) return;
    for (const at::Tensor* input : inputs) after_.push_back(*input);
  }

 private:
  Arguments& arguments_;
  c10::SmallVector<at::Tensor, 4> before_, after_;
};

template <class Result, class Arguments, class Body>
Result intercepted(const std::shared_ptr<Unit>& unit, Arguments& arguments, Body&& body) {
  if constexpr (std::is_reference_v<Result>) {
    refuse_reference_result(
        typeid(Result));  // it could refer to what lives only as long as the call
  } else {
    if (const std::type_info* unknown = unknown_output<std::remove_const_t<Result>>())
      refuse_output_type(*unknown);
    ForwardCall call(unit);
    TensorPointers inputs;
    std::apply([&](auto&... each) { (collect_tensors(each, inputs), ...); }, arguments);
    CallerTensors<Arguments> callers(arguments, inputs);
    call.begin(inputs);
    callers.replaced(inputs);
    if constexpr (std::is_void_v<Result>) {
      std::apply(body, arguments);
      call.finish({});
    } else {
      std::remove_const_t<Result> result = std::apply(body, arguments);
      TensorPointers outputs;
      collect_output_tensors(result, outputs);
      call.finish(outputs);
      return result;
    }
  }
}

}  // namespace detail

/// What fully_shard finds in a module that can be a unit.
class HookPoint {
 public:
  virtual ~HookPoint() = default;
  std::shared_ptr<detail::Unit> unit;  // null: not sharded
};

namespace detail {

struct FromPlain {};

/// The class of the objects that holders of M make.
template <class M>
struct ModuleOf;

/// M, and what it needs as a unit: the intercepted call, and refusals of the virtual calls of
/// torch::nn::Module that would see shards where full parameters are meant.
template <class M>
class GuardedModule : public M, public HookPoint {
  static_assert(std::is_base_of_v<torch::nn::Module, M>,
                "FSDP_MODULE and fsdp::Holder take a torch::nn::Module");
  static_assert(
      !std::is_final_v<M>,
      "the class of a unit must not be final: its forward is intercepted by a derived class");

 public:
  using M::M;
  GuardedModule(FromPlain, const M& plain)
    requires std::is_copy_constructible_v<M>
      : M(plain) {}

  /// As M's; the copy can be a unit too. Only while not sharded.
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override {
    if (unit) refuse_module_call("clone", *this);
    std::shared_ptr<torch::nn::Module> copy = M::clone(device);
    if constexpr (std::is_copy_constructible_v<M>)
      if (const torch::nn::Module& plain = *copy; typeid(plain) == typeid(M))
        return std::make_shared<typename ModuleOf<M>::type>(FromPlain{},
                                                            static_cast<const M&>(plain));
    return copy;
  }

  /// The other way into torch::nn::RNN, LSTM and GRU.
  template <class Self = M, class... A>
  auto forward_with_packed_input(A&&... arguments)
      -> decltype(std::declval<Self&>().forward_with_packed_input(std::forward<A>(arguments)...)) {
    using Result =
        decltype(std::declval<Self&>().forward_with_packed_input(std::forward<A>(arguments)...));
    if (!unit) return M::forward_with_packed_input(std::forward<A>(arguments)...);
    std::tuple<Kept<A&&>...> kept{keep<A&&>(arguments)...};
    return intercepted<Result>(unit, kept, [this](auto&... each) -> Result {
      return M::forward_with_packed_input(pass<A&&>(each)...);
    });
  }

  // Overloads of these names that M has of its own stay visible.
  using M::load;
  using M::save;
  using M::to;
  void to(torch::Device device, torch::Dtype dtype, bool non_blocking = false) override {
    if (unit) refuse_module_call("to", *this);
    if constexpr (requires { M::to(device, dtype, non_blocking); })
      M::to(device, dtype, non_blocking);
    else
      torch::nn::Module::to(device, dtype, non_blocking);
  }
  void to(torch::Dtype dtype, bool non_blocking = false) override {
    if (unit) refuse_module_call("to", *this);
    if constexpr (requires { M::to(dtype, non_blocking); })
      M::to(dtype, non_blocking);
    else
      torch::nn::Module::to(dtype, non_blocking);
  }
  void to(torch::Device device, bool non_blocking = false) override {
    if (unit) refuse_module_call("to", *this);
    if constexpr (requires { M::to(device, non_blocking); })
      M::to(device, non_blocking);
    else
      torch::nn::Module::to(device, non_blocking);
  }
  void save(torch::serialize::OutputArchive& archive) const override {
    if (unit) refuse_module_call("save", *this);
    if constexpr (requires { M::save(archive); })
      M::save(archive);
    else
      torch::nn::Module::save(archive);
  }
  void load(torch::serialize::InputArchive& archive) override {
    if (unit) refuse_module_call("load", *this);
    if constexpr (requires { M::load(archive); })
      M::load(archive);
    else
      torch::nn::Module::load(archive);
  }

 protected:
  /// M::forward of these arguments, in the unit if there is one.
  template <class R, class... P>
  R call_forward(std::remove_reference_t<P>&... arguments) {
    if (!unit) return M::forward(static_cast<P&&>(arguments)...);
    std::tuple<Kept<P>...> kept{keep<P>(arguments)...};
    return intercepted<R>(unit, kept,
                          [this](auto&... each) -> R { return M::forward(pass<P>(each)...); });
  }

 private:
  // Not Hooked<...>: module.name() shows the user's class.
  bool named_ = name_after(*this, typeid(M));
};

/// Overloaded and template forwards: takes whatever M's takes.
template <class M, class Signature>
class Hooked : public GuardedModule<M> {
 public:
  using GuardedModule<M>::GuardedModule;
  template <class... A>
  auto forward(A&&... arguments)
      -> decltype(std::declval<M&>().forward(std::forward<A>(arguments)...)) {
    return this->template call_forward<
        decltype(std::declval<M&>().forward(std::forward<A>(arguments)...)), A&&...>(arguments...);
  }
};

/// The exact signature, so that AnyModule can deduce it.
template <class M, class R, class... P>
class Hooked<M, R(P...)> : public GuardedModule<M> {
 public:
  using GuardedModule<M>::GuardedModule;
  R forward(P... arguments) { return this->template call_forward<R, P...>(arguments...); }
};

/// R(P...) of a member function; void where it is overloaded, a template or absent.
template <class F>
struct PlainSignature {
  using type = void;
};
#define TESSERA_PLAIN_SIGNATURE(QUALIFIERS)          \
  template <class R, class C, class... P>            \
  struct PlainSignature<R (C::*)(P...) QUALIFIERS> { \
    using type = R(P...);                            \
  };
TESSERA_PLAIN_SIGNATURE()
TESSERA_PLAIN_SIGNATURE(const)
TESSERA_PLAIN_SIGNATURE(&)
TESSERA_PLAIN_SIGNATURE(const&)
TESSERA_PLAIN_SIGNATURE(noexcept)
TESSERA_PLAIN_SIGNATURE(const noexcept)
#undef TESSERA_PLAIN_SIGNATURE
template <class R, class... P>
struct PlainSignature<R (*)(P...)> {
  using type = R(P...);
};

template <class M, class = void>
struct SignatureOf {
  using type = void;
};
template <class M>
struct SignatureOf<M, std::void_t<decltype(&M::forward)>> : PlainSignature<decltype(&M::forward)> {
};

/// The class AnyModule holds: exactly one forward, without default arguments.
template <class M>
using Exact = Hooked<M, typename SignatureOf<M>::type>;

// A parameter pack cannot have default arguments. A forward that can be called with its last
// arguments left out gets an overload for each shorter list, in a class below the exact one.

template <class Given, class Left>
struct Split;  // all but the last
template <class... Given, class Last>
struct Split<Types<Given...>, Types<Last>> {
  using type = Types<Given...>;
};
template <class... Given, class Next, class More, class... Left>
struct Split<Types<Given...>, Types<Next, More, Left...>>
    : Split<Types<Given..., Next>, Types<More, Left...>> {};

template <class M, class List>
inline constexpr bool takes = false;
template <class M, class... P>
inline constexpr bool takes<M, Types<P...>> =
    requires(M& module) { module.forward(std::declval<P>()...); };

template <class M, class R, class List, class Base>
class ShortCall;
template <class M, class R, class Base, class... P>
class ShortCall<M, R, Types<P...>, Base> : public Base {
 public:
  using Base::Base;
  using Base::forward;
  R forward(P... arguments) { return this->template call_forward<R, P...>(arguments...); }
};

template <class M, class R, class List, class Base, bool = takes<M, List>>
struct AddShortCalls {
  using type = Base;
};
template <class M, class R, class Base>
struct AddShortCalls<M, R, Types<>, Base, true> {
  using type = ShortCall<M, R, Types<>, Base>;
};
template <class M, class R, class Base, class First, class... P>
struct AddShortCalls<M, R, Types<First, P...>, Base, true>
    : AddShortCalls<M, R, typename Split<Types<>, Types<First, P...>>::type,
                    ShortCall<M, R, Types<First, P...>, Base>> {};

template <class M, class Signature>
struct Callable {
  using type = Exact<M>;
};
template <class M, class R, class First, class... P>
struct Callable<M, R(First, P...)>
    : AddShortCalls<M, R, typename Split<Types<>, Types<First, P...>>::type, Exact<M>> {};

template <class M>
struct ModuleOf : Callable<M, typename SignatureOf<M>::type> {};

}  // namespace detail

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

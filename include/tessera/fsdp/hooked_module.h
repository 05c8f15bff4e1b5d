#pragma once
// The class of a module that can be a unit, derived from the user's Impl: its `forward`, of the
// same signatures, goes through forward_call.h. For module.h; users write FSDP_MODULE or Holder.
#include <tessera/fsdp/forward_call.h>
#include <torch/nn/module.h>

#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

namespace tessera::fsdp {

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
    return intercepted<Result>(*this, kept, [this](auto&... each) -> Result {
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
    return intercepted<R>(*this, kept,
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

}  // namespace tessera::fsdp

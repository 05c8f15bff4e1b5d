#pragma once
// One call of a unit's forward, intercepted: how its arguments are kept, what tensors are in them,
// and what the caller finds in his variables afterwards. For module.h and hook_slot.h; nothing here
// is called by name.
#include <tessera/fsdp/tensor_visitor.h>
#include <torch/nn/module.h>

#include <memory>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <vector>

namespace tessera::fsdp {

namespace detail {
class Unit;
class Use;
}  // namespace detail

/// What fully_shard finds in a module that can be a unit.
class HookPoint {
 public:
  virtual ~HookPoint() = default;
  std::shared_ptr<detail::Unit> unit;  // null: not sharded
};

}  // namespace tessera::fsdp

namespace tessera::fsdp::detail {

/// One intercepted forward. Destroyed without finish() (an exception passed): undone.
class ForwardCall {
 public:
  /// `point` has a unit, whose module it is.
  explicit ForwardCall(const HookPoint& point);
  ForwardCall(const ForwardCall&) = delete;
  ForwardCall& operator=(const ForwardCall&) = delete;
  ~ForwardCall();
  /// Gathers; casts `inputs` in place where the unit's precision asks for it.
  void begin(const TensorPointers& inputs);
  /// Registers the backward hooks on `outputs` (casts them where asked) and frees the parameters.
  void finish(const TensorPointers& outputs);

 private:
  const HookPoint& point_;
  std::shared_ptr<Unit> unit_;
  std::shared_ptr<Use> use_;  // set by begin()
  bool finished_ = false;
};

/// Throws kUnsupported naming the class, and the call to make instead of `call` on a sharded
/// module.
[[noreturn]] void refuse_module_call(const char* call, const torch::nn::Module& module);
/// Throws kUnsupported: the unit's forward returns a reference.
[[noreturn]] void refuse_reference_result(const std::type_info& type);
/// Names the module after `type`: module.name() returns that from now on, unless it has a name
/// already. Callers ignore the result.
bool name_after(const torch::nn::Module& module, const std::type_info& type);

/// How an argument of type P is kept for the call. A const reference to tensors is kept as a copy of
/// the handles, so that they can be replaced; anything else is kept by reference.
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
Result intercepted(const HookPoint& point, Arguments& arguments, Body&& body) {
  if constexpr (std::is_reference_v<Result>) {
    refuse_reference_result(
        typeid(Result));  // it could refer to what lives only as long as the call
  } else {
    if (const std::type_info* unknown = unknown_output<std::remove_const_t<Result>>())
      refuse_output_type(*unknown);
    ForwardCall call(point);
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

}  // namespace tessera::fsdp::detail

// Operators of the simulated accelerator. Nearly all are one fallback: infer the outputs here, give
// the CPU's kernel to the stream, return. What cannot be inferred (nonzero, item) waits for the
// stream and runs at once, as on a GPU.
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/native/Resize.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/library.h>

#include <optional>

#include "tests/fsdp/sim/machine.h"

namespace tessera::sim {
namespace {

using at::Tensor;
using c10::IValue;
using torch::jit::Stack;

bool here(const Tensor& tensor) { return tensor.defined() && tensor.device().type() == kType; }

Tensor empty_like_on(const Tensor& like, c10::Device device) {
  const c10::OptionalDeviceGuard guard(device);
  return at::empty_strided(like.sizes(), like.strides(),
                           like.options().device(device).requires_grad(false));
}

/// `value` with each tensor in it replaced; devices become `device`, generators none.
template <class F>
IValue mapped(const IValue& value, c10::DeviceType device, const F& function) {
  if (value.isTensor())
    return value.toTensor().defined() ? IValue(function(value.toTensor())) : value;
  if (value.isTensorList()) {
    c10::List<Tensor> out;
    for (const Tensor& tensor : value.toTensorVector()) out.push_back(function(tensor));
    return out;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> out;
    for (const std::optional<Tensor>& tensor : value.toOptionalTensorVector())
      out.push_back(tensor && tensor->defined() ? std::optional(function(*tensor)) : tensor);
    return out;
  }
  if (value.isDevice()) return c10::Device(device);
  if (value.isGenerator()) return {};
  return value;
}

/// One call of an operator that has no kernel of its own here.
class Call {
 public:
  Call(const c10::OperatorHandle& op, Stack& stack)
      : op_(op), schema_(op.schema()), name_(toString(schema_.operator_name())) {
    const std::size_t count = schema_.arguments().size();
    arguments_.assign(stack.end() - static_cast<std::ptrdiff_t>(count), stack.end());
    torch::jit::drop(stack, count);
    for (std::size_t i = 0; i < count; ++i)
      mapped(arguments_[i], kType, [&](const Tensor& tensor) {
        if (here(tensor)) (written(i) ? writes_ : reads_).push_back(tensor);
        return tensor;
      });
    const std::vector<Tensor>& any = writes_.empty() ? reads_ : writes_;
    TORCH_CHECK(!any.empty(), name_, ": no tensor of a simulated device");
    device_ = any.front().device();
  }

  void run(Stack& stack) {
    if (infer())
      enqueue();
    else
      run_now();
    for (IValue& value : outputs_) stack.push_back(std::move(value));
  }

 private:
  using Pairs = std::vector<std::pair<Tensor, Tensor>>;  // a stand-in, and what it stands for

  bool written(std::size_t argument) const {
    const auto* alias = schema_.arguments()[argument].alias_info();
    return alias && alias->isWrite();
  }
  bool is_out(std::size_t argument) const {
    return written(argument) && schema_.arguments()[argument].kwarg_only();
  }
  /// The argument that a result is the same tensor as.
  std::optional<IValue> returned_argument(std::size_t result) const {
    const auto* alias = schema_.returns()[result].alias_info();
    if (!alias) return std::nullopt;
    for (std::size_t i = 0; i < arguments_.size(); ++i)
      if (const auto* other = schema_.arguments()[i].alias_info(); other && *other == *alias)
        return arguments_[i];
    return std::nullopt;
  }
  /// The arguments for a call elsewhere. Kernels may resize out= arguments on their way: those are
  /// fresh tensors, copied afterwards.
  template <class F>
  Stack elsewhere(c10::DeviceType device, Pairs& outs, const F& function) const {
    Stack out;
    for (std::size_t i = 0; i < arguments_.size(); ++i)
      out.push_back(mapped(arguments_[i], device, [&](const Tensor& tensor) {
        if (!is_out(i)) return Tensor(function(tensor));
        outs.emplace_back(at::empty({0}, tensor.options().device(device).requires_grad(false)),
                          tensor);
        return outs.back().first;
      }));
    return out;
  }

  bool depends_on_data() const {
    if (op_.hasTag(at::Tag::data_dependent_output) || op_.hasTag(at::Tag::dynamic_output_shape))
      return true;
    // By a mask, which no tag tells.
    return name_.starts_with("aten::index") &&
           std::ranges::any_of(
               reads_, [](const Tensor& tensor) { return tensor.scalar_type() == at::kBool; });
  }

  /// On tensors without values; where LibTorch has no such kernel, on zeros.
  Stack results_of_stand_ins(Pairs& outs) const {
    const auto call = [&](c10::DeviceType device) {
      outs.clear();
      Stack stack = elsewhere(device, outs, [device](const Tensor& tensor) {
        return at::empty_strided(
                   tensor.sizes(), tensor.strides(),
                   tensor.options().device(device).pinned_memory(false).requires_grad(false))
            .zero_();
      });
      op_.callBoxed(&stack);
      return stack;
    };
    try {
      return call(at::kMeta);
    } catch (const c10::NotImplementedError&) {
      return call(at::kCPU);
    }
  }

  bool infer() {
    if (depends_on_data()) return false;
    try {
      const at::NoGradGuard no_grad;
      Pairs outs;
      const Stack results = results_of_stand_ins(outs);
      for (auto& [found, out] : outs)
        if (out.sizes() != found.sizes()) out.resize_(found.sizes());
      for (std::size_t r = 0; r < schema_.returns().size(); ++r) {
        if (std::optional<IValue> same = returned_argument(r)) {
          outputs_.push_back(std::move(*same));
        } else if (results[r].isTensor() || results[r].isTensorList()) {
          outputs_.push_back(mapped(results[r], kType, [&](const Tensor& tensor) {
            writes_.push_back(empty_like_on(tensor, device_));
            return writes_.back();
          }));
        } else {
          outputs_.clear();
          return false;
        }
      }
      return true;
    } catch (const c10::Error&) {
      outputs_.clear();  // the call itself says what is wrong with it
      return false;
    }
  }

  static Tensor host_of(const Tensor& tensor) { return here(tensor) ? host_view(tensor) : tensor; }

  void enqueue() {
    Pairs outs;
    Stack stack = elsewhere(at::kCPU, outs, host_of);
    for (auto& pair : outs) pair.second = host_view(pair.second);
    Stack to;
    for (std::size_t r = 0; r < outputs_.size(); ++r)
      to.push_back(returned_argument(r) ? IValue() : mapped(outputs_[r], at::kCPU, host_of));
    launch(current_stream(device_.index()), name_, reads_, writes_,
           [op = op_, stack, outs, to]() mutable {
             op.callBoxed(&stack);
             for (auto& [from, out] : outs) out.copy_(from);
             for (std::size_t r = 0; r < to.size(); ++r) {
               if (to[r].isTensor()) {
                 to[r].toTensor().copy_(stack[r].toTensor());
               } else if (to[r].isTensorList()) {
                 const auto into = to[r].toTensorVector(), from = stack[r].toTensorVector();
                 for (std::size_t k = 0; k < into.size(); ++k) into[k].copy_(from[k]);
               }
             }
           });
  }

  void run_now() {
    const c10::Stream stream = current_stream(device_.index());
    launch(stream, name_, reads_, writes_, [] {});
    stream.synchronize();
    Pairs outs;
    Stack stack = elsewhere(at::kCPU, outs, host_of);
    op_.callBoxed(&stack);
    for (auto& [from, out] : outs) {
      if (out.sizes() != from.sizes()) out.resize_(from.sizes());
      host_view(out).copy_(from);
    }
    for (std::size_t r = 0; r < stack.size(); ++r) {
      std::optional<IValue> same = returned_argument(r);
      outputs_.push_back(same ? std::move(*same)
                              : mapped(stack[r], kType, [&](const Tensor& tensor) {
                                  Tensor out = empty_like_on(tensor, device_);
                                  host_view(out).copy_(tensor);
                                  return out;
                                }));
    }
  }

  const c10::OperatorHandle op_;
  const c10::FunctionSchema& schema_;
  const std::string name_;
  std::vector<IValue> arguments_, outputs_;
  std::vector<Tensor> reads_, writes_;
  c10::Device device_ = device();
};

void fallback(const c10::OperatorHandle& op, Stack* stack) { Call(op, *stack).run(*stack); }

// ---- what the fallback cannot do ----

using Sizes = at::IntArrayRef;

Tensor empty(Sizes sizes, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
             std::optional<at::Device> device, std::optional<bool>,
             std::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(sizes, allocator(),
                                   c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(Sizes sizes, Sizes strides, std::optional<at::ScalarType> dtype,
                     std::optional<at::Layout>, std::optional<at::Device> device,
                     std::optional<bool>) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(sizes, strides, allocator(),
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(dtype));
}

void order(const c10::Stream& first, const c10::Stream& then) {
  c10::Event event(kType);
  event.record(first);
  event.block(then);
}

/// Every copy ends here: between devices, and from and to the host, which waits unless its memory is
/// pinned and it asked not to.
Tensor copy_from(const Tensor& from, const Tensor& to, bool non_blocking) {
  const bool reads = here(from), writes = here(to);
  const c10::Stream stream = current_stream((reads ? from : to).device().index());
  const bool between = reads && writes && from.device() != to.device();
  const c10::Stream other = current_stream(writes ? to.device().index() : stream.device_index());
  if (between) order(other, stream);
  launch(stream, "copy", reads ? std::vector{from} : std::vector<Tensor>{},
         writes ? std::vector{to} : std::vector<Tensor>{},
         [source = reads ? host_view(from) : from, target = writes ? host_view(to) : to] {
           target.copy_(source);
         });
  if (between) order(stream, other);
  const Tensor& host = reads ? to : from;
  if (!(reads && writes) && !(non_blocking && host.is_pinned())) stream.synchronize();
  return to;
}

const Tensor& resize(const Tensor& tensor, Sizes sizes, std::optional<at::MemoryFormat>) {
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(sizes);
  const auto bytes =
      static_cast<std::size_t>(impl->storage_offset() + impl->numel()) * impl->itemsize();
  if (bytes > tensor.storage().nbytes())
    at::native::resize_bytes_nocuda(tensor.storage(),
                                    c10::SymInt(static_cast<std::int64_t>(bytes)));
  return tensor;
}

Tensor& set_storage(Tensor& tensor, c10::Storage storage, std::int64_t offset, Sizes sizes,
                    Sizes strides) {
  tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(storage));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
  return tensor;
}

void record_stream(Tensor& tensor, c10::Stream stream) {
  Machine::the().record_stream(tensor.storage().data(), key_of(stream));
}

/// set_data, by which Module::to goes, refuses from the CPU to PrivateUse1 unless this agrees.
bool may_become(const Tensor& a, const Tensor& b) {
  const auto known = [](const Tensor& tensor) {
    return tensor.device().is_cpu() || tensor.device().is_meta() || here(tensor);
  };
  return (known(a) && known(b)) ||
         a.unsafeGetTensorImpl()->has_compatible_shallow_copy_type(b.key_set());
}

}  // namespace

void register_operators() {
  using torch::CppFunction;
  static auto* const any = new torch::Library(torch::Library::IMPL, "_",
                                              c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  any->fallback(CppFunction::makeFromBoxedFunction<&fallback>());
  static auto* const own = new torch::Library(torch::Library::IMPL, "aten",
                                              c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  own->impl("empty.memory_format", empty);
  own->impl("empty_strided", empty_strided);
  own->impl("_copy_from", copy_from);
  own->impl("as_strided", at::native::as_strided_tensorimpl);
  own->impl("view", at::native::view);
  own->impl("_reshape_alias", at::native::_reshape_alias);
  own->impl("resize_", resize);
  own->impl("set_.source_Storage_storage_offset", set_storage);
  own->impl("record_stream", record_stream);
  // Composed of other operators elsewhere, not bit for bit the CPU's.
  own->impl("native_layer_norm", CppFunction::makeFromBoxedFunction<&fallback>());
  for (const auto key :
       {c10::DispatchKey::PrivateUse1, c10::DispatchKey::CPU, c10::DispatchKey::Meta})
    (new torch::Library(torch::Library::IMPL, "aten", key, __FILE__, __LINE__))
        ->impl("_has_compatible_shallow_copy_type", may_become);
}

}  // namespace tessera::sim

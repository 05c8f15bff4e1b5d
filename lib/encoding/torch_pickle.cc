#include "lib/encoding/torch_pickle.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/encoding/pickle_writer.h>
#include <tessera/state/manifest.h>

#include <algorithm>

#include "lib/encoding/torch_storages.h"

namespace tessera {
namespace {

class TensorWriter {
 public:
  explicit TensorWriter(const std::vector<ArchiveWriteTensor>& tensors) : tensors_(tensors) {}

  void write(PickleEmitter& e, std::uint32_t index) const {
    if (index >= tensors_.size()) fail(Code::kInvalidArgument, "a tensor reference out of range");
    const ArchiveWriteTensor& tensor = tensors_[index];
    if (!tensor.is_parameter) return write_tensor(e, tensor, tensor.requires_grad);
    e.global("torch._utils", "_rebuild_parameter");
    write_tensor(e, tensor, false);
    e.boolean(tensor.requires_grad);
    write_hooks(e);
    e.tuple_n(3);
    e.reduce();
  }

  /// The storage of a tensor that holds all of one.
  void write_bare_storage(PickleEmitter& e, std::uint32_t index, std::optional<DType> dtype) const {
    if (index >= tensors_.size()) fail(Code::kInvalidArgument, "a tensor reference out of range");
    write_storage(e, tensors_[index], dtype);
  }

 private:
  void write_tensor(PickleEmitter& e, const ArchiveWriteTensor& tensor, bool requires_grad) const {
    const DType dtype = tensor.spec.dtype;
    const bool typed = storage_class_name(dtype).has_value();
    e.global("torch._utils", tensor.quant ? "_rebuild_qtensor"
                             : typed      ? "_rebuild_tensor_v2"
                                          : "_rebuild_tensor_v3");
    e.mark();
    write_storage(e, tensor, dtype);
    e.integer(0);
    write_tuple(e, {tensor.spec.shape.extents().begin(), tensor.spec.shape.extents().end()});
    write_tuple(e, contiguous_strides(tensor.spec.shape));
    if (tensor.quant) write_quantizer(e, *tensor.quant);
    e.boolean(requires_grad);
    write_hooks(e);
    if (!typed) e.global("torch", torch_name(dtype));
    e.tuple();
    e.reduce();
  }

  /// `dtype`: of a typed storage.
  static void write_storage(PickleEmitter& e, const ArchiveWriteTensor& tensor,
                            std::optional<DType> dtype) {
    const auto name = dtype ? storage_class_name(*dtype) : std::nullopt;
    e.mark();
    e.string("storage");
    e.global(name ? "torch" : "torch.storage", name ? *name : "UntypedStorage");
    e.string(fmt::format("{}", tensor.storage));
    e.string("cpu");
    e.integer(tensor.spec.size_bytes() / (name ? element_bytes(*dtype) : 1));
    e.tuple();
    e.persistent_id();
  }

  void write_quantizer(PickleEmitter& e, const QuantParams& quant) const {
    const auto tensor = [this](PickleEmitter& emitter, std::uint32_t i) { write(emitter, i); };
    e.mark();
    e.global("torch", quant.scheme);
    if (quant.scheme == "per_tensor_affine") {
      e.real(quant.scale);
      e.integer(quant.zero_point);
    } else if (quant.scheme.starts_with("per_channel_affine")) {
      write_value(e, quant.scales, tensor);
      write_value(e, quant.zero_points, tensor);
      e.integer(quant.axis);
    } else {
      fail(Code::kUnsupported, fmt::format("quantizer scheme {}", quant.scheme));
    }
    e.tuple();
  }

  static void write_hooks(PickleEmitter& e) {
    e.global("collections", "OrderedDict");
    e.empty_tuple();
    e.reduce();
  }

  static void write_tuple(PickleEmitter& e, const std::vector<std::int64_t>& values) {
    if (values.empty()) return e.empty_tuple();
    if (values.size() > 3) e.mark();
    for (const std::int64_t value : values) e.integer(value);
    if (values.size() > 3) {
      e.tuple();
    } else {
      e.tuple_n(static_cast<int>(values.size()));
    }
  }

  const std::vector<ArchiveWriteTensor>& tensors_;
};

}  // namespace

Bytes write_torch_pickle(const Value& root, const std::vector<ArchiveWriteTensor>& tensors) {
  const TensorWriter writer(tensors);
  PickleEmitter emitter;
  write_value(
      emitter, root, [&](PickleEmitter& e, std::uint32_t index) { writer.write(e, index); },
      [&](PickleEmitter& e, std::uint32_t index, std::optional<DType> dtype) {
        writer.write_bare_storage(e, index, dtype);
      });
  return emitter.finish();
}

std::vector<std::int64_t> contiguous_strides(const Shape& shape) {
  std::vector<std::int64_t> strides(static_cast<std::size_t>(shape.rank()));
  std::int64_t step = 1;
  for (int d = shape.rank(); d-- > 0;) {
    strides[static_cast<std::size_t>(d)] = step;
    step *= std::max<std::int64_t>(shape[d], 1);
  }
  return strides;
}

}  // namespace tessera

#include "lib/encoding/torch_tensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <tessera/base/checked.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/state/value.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "lib/encoding/torch_storages.h"

namespace tessera {
namespace {

using Node = PickleGraph::Node;
constexpr int kMaxRebuildDepth = 8;  // a parameter of a tensor of a device tensor ...
constexpr std::uint64_t kMostNamed = std::uint64_t{1} << 24;  // leaves

/// What frameworks note on tensors for themselves: "_is_buffer" and "persistent" of PyTorch's
/// buffers, "_has_been_cloned" of FSDP, "ds_id" of DeepSpeed; how Megatron cuts and reduces a
/// parameter, which its masters of 16-bit weights repeat and its modules set anew.
bool is_bookkeeping(std::string_view attribute) {
  constexpr std::string_view kSetByFrameworks[] = {
      "persistent", "tensor_model_parallel", "partition_dim", "partition_stride",
      "expert_tp",  "sequence_parallel",     "allreduce",     "grad_norm_group",
      "is_qkv",     "qkv_split_shapes"};
  return attribute.starts_with('_') || attribute.starts_with("ds_") ||
         std::ranges::find(kSetByFrameworks, attribute) != std::end(kSetByFrameworks);
}

/// Megatron marks the master of an embedding that stages share; elsewhere the word is the program's.
bool is_megatron_tie(std::string_view attribute, std::span<const std::string> beside) {
  return attribute == "shared" && std::ranges::find(beside, "partition_dim") != beside.end();
}

}  // namespace

TensorResolver::TensorResolver(const PickleGraph& graph, TorchArchive& archive,
                               OpenStorage open_storage)
    : graph_(graph), archive_(archive), open_storage_(std::move(open_storage)) {}

std::optional<Value> TensorResolver::operator()(Node node) {
  const PickleKind kind = graph_.kind(node);
  if (kind == PickleKind::kPersistentId) {
    return bare_storage(node);
  }
  if (!is_call(kind)) return std::nullopt;
  const std::size_t noted_before = archive_.notes.size();
  const auto index = tensor(node, 0);
  if (!index) return std::nullopt;
  for (std::size_t i = noted_before; i < archive_.notes.size(); ++i) noted_.emplace_back(i, *index);
  return Value::tensor(*index);
}

void TensorResolver::name_notes() {
  if (noted_.empty()) return;
  ValueBudget budget(kMostNamed);
  std::unordered_map<std::uint32_t, std::string> names;
  for (const StateEntry& entry : flatten(archive_.root, budget).entries)
    if (entry.value.is_tensor()) names.emplace(entry.value.tensor_index(), entry.name);
  for (const auto& [note, tensor] : noted_)
    if (const auto found = names.find(tensor); found != names.end())
      archive_.notes[note].tensor = found->second;
}

std::optional<std::uint32_t> TensorResolver::tensor(Node node, int depth) {
  if (!is_call(graph_.kind(node))) return std::nullopt;
  if (const auto known = tensors_.find(node); known != tensors_.end()) return known->second;
  if (depth > kMaxRebuildDepth) corrupt("tensors rebuilt from each other without end");
  std::optional<std::uint32_t> index;
  if (auto made = make(node, depth)) {
    index = static_cast<std::uint32_t>(archive_.tensors.size());
    archive_.tensors.push_back(std::move(*made));
  }
  tensors_.emplace(node, index);
  return index;
}

std::optional<ArchiveTensor> TensorResolver::make(Node node, int depth) {
  const Node callable = graph_.callable(node);
  if (graph_.kind(callable) != PickleKind::kGlobal) return std::nullopt;
  const auto [module, name] = graph_.global(callable);
  if (module == "torch._utils") return make_torch_call(name, graph_.arguments(node), depth);
  if (module == "torch._tensor" && name.starts_with("_rebuild_from_type"))
    return make_from_type(graph_.arguments(node), depth);
  if (module == "torch.storage" && name == "_load_from_bytes")
    fail(Code::kUnsupported,
         "torch.storage._load_from_bytes: an archive pickled inside of the archive is not read");
  if (is_tensor_class(module, name) || module == "torch.nn.parameter")
    return make_from_state(node, depth);
  return std::nullopt;
}

std::optional<ArchiveTensor> TensorResolver::make_torch_call(std::string_view name, Node arguments,
                                                             int depth) {
  const auto items = graph_.items(arguments);
  if (name == "_rebuild_tensor" || name == "_rebuild_tensor_v2") {
    ArchiveTensor tensor = strided(items, std::nullopt);
    if (items.size() > 4) tensor.requires_grad = flag(items[4]);
    if (items.size() > 6) set_flags(tensor, items[6]);
    return tensor;
  }
  if (name == "_rebuild_tensor_v3") {
    need_arguments(items, 7, name);
    ArchiveTensor tensor = strided(items, dtype(items[6]));
    tensor.requires_grad = flag(items[4]);
    if (items.size() > 7) set_flags(tensor, items[7]);
    return tensor;
  }
  if (name == "_rebuild_parameter_with_state" && items.size() > 3) {
    check_attributes(items[3]);
    note_attributes(items[3], depth);
  }
  if (name == "_rebuild_parameter" || name == "_rebuild_parameter_with_state")
    return parameter(items, depth);
  if (name == "_rebuild_qtensor") return quantized(items);
  if (name == "_rebuild_sparse_tensor") return sparse(items, depth);
  if (name == "_rebuild_meta_tensor_no_storage") return meta(items);
  if (name == "_rebuild_device_tensor_from_cpu_tensor") return moved_to_device(items, depth);
  return std::nullopt;
}

/// _rebuild_from_type_v2(function, type, arguments, state): the tensor that function(*arguments)
/// makes. A subclass that wraps other tensors has no storage of its own (make_wrapped).
std::optional<ArchiveTensor> TensorResolver::make_from_type(Node arguments, int depth) {
  const auto items = graph_.items(arguments);
  need_arguments(items, 3, "_rebuild_from_type_v2");
  if (graph_.kind(items[0]) != PickleKind::kGlobal ||
      graph_.kind(items[1]) != PickleKind::kGlobal || graph_.kind(items[2]) != PickleKind::kTuple)
    corrupt("malformed _rebuild_from_type_v2");
  if (depth > kMaxRebuildDepth) corrupt("tensors rebuilt from each other without end");
  const auto [module, function] = graph_.global(items[0]);
  if (module == "torch._tensor")
    fail(Code::kUnsupported, fmt::format("a tensor whose subclass is set twice ({})", function));
  if (module != "torch._utils") return std::nullopt;
  if (function == "_rebuild_wrapper_subclass") return make_wrapped(items, depth);
  auto tensor = make_torch_call(function, items[2], depth + 1);
  if (tensor && items.size() > 3) note_attributes(items[3], depth);
  const auto [type_module, type] = graph_.global(items[1]);
  if (!tensor || (type_module == "torch" && type == "Tensor")) return tensor;
  if (type_module == "torch.nn.parameter") {
    tensor->is_parameter = tensor->is_parameter || type == "Parameter";
    return tensor;
  }
  note_subclass(items[1]);
  return tensor;
}

void TensorResolver::note_subclass(Node type) {
  const auto [module, name] = graph_.global(type);
  archive_.notes.push_back(
      {Finding::kUnknownTensorClass,
       Severity::kWarning,
       fmt::format("a tensor of class {}.{} is read as a plain tensor", module, name),
       {},
       {}});
}

/// Python's attributes of a tensor (`weight.note = ...`), which are not kept: each is reported
/// once. `state`: its __dict__, or a tuple of that and of its slots.
void TensorResolver::note_attributes(Node state, int depth) {
  constexpr std::size_t kMostNoted = 16, kMostAttributes = 256;
  if (graph_.kind(state) == PickleKind::kTuple && depth < kMaxRebuildDepth)
    for (const Node part : graph_.items(state)) note_attributes(part, depth + 1);
  if (graph_.kind(state) != PickleKind::kDict) return;
  const auto items = graph_.dict_items(state);
  std::vector<std::string> names;
  for (std::size_t i = 0; i + 1 < items.size() && names.size() < kMostAttributes; i += 2)
    if (graph_.kind(items[i]) == PickleKind::kString) names.emplace_back(graph_.text(items[i]));
  for (const std::string& name : names) {
    if (attributes_.size() >= kMostNoted) return;
    if (is_bookkeeping(name) || is_megatron_tie(name, names) || !attributes_.insert(name).second)
      continue;
    archive_.notes.push_back(
        {Finding::kTensorAttributes,
         Severity::kWarning,
         fmt::format("tensors have the Python attribute \"{}\", which is not kept",
                     printable(name)),
         {},
         {}});
  }
}

/// Before PyTorch 0.4: Tensor.__new__() with BUILD (storage, offset, size, stride);
/// Parameter(tensor) with BUILD (requires_grad, volatile, hooks), Parameter.__new__() with BUILD
/// (tensor, gradient, hooks, requires_grad, volatile).
std::optional<ArchiveTensor> TensorResolver::make_from_state(Node node, int depth) {
  const auto [module, name] = graph_.global(graph_.callable(node));
  const auto arguments = graph_.items(graph_.arguments(node));
  const auto state = graph_.state(node);
  const auto items = state ? graph_.items(*state) : std::span<const Node>{};
  if (module == "torch.nn.parameter") {
    if (name != "Parameter") return std::nullopt;
    const bool oldest = arguments.empty() && items.size() == 5;
    if (!oldest && (arguments.empty() || arguments.size() > 2 || (state && items.size() != 3)))
      fail(Code::kUnsupported, "a Parameter that is not made from a tensor");
    auto made = parameter(oldest ? items.first(1) : arguments, depth);
    if (made && state) made->requires_grad = flag(items[oldest ? 3 : 0]);
    return made;
  }
  if (!arguments.empty() || items.size() != 4 || module.ends_with("sparse"))
    fail(Code::kUnsupported,
         fmt::format("a tensor that {}.{} makes of numbers or other tensors", module, name),
         "save the tensor itself with torch.save");
  return strided(items, std::nullopt);
}

/// nullopt: its data wraps other tensors (a DTensor), and so does the parameter.
std::optional<ArchiveTensor> TensorResolver::parameter(std::span<const Node> arguments, int depth) {
  need_arguments(arguments, 1, "a parameter");
  const auto data = tensor(arguments[0], depth + 1);
  if (!data && is_call(graph_.kind(arguments[0]))) return std::nullopt;
  if (!data) corrupt("a parameter whose data is no tensor");
  ArchiveTensor out = archive_.tensors[*data];
  out.is_parameter = true;
  out.requires_grad = arguments.size() < 2 || flag(arguments[1]);
  return out;
}

ArchiveTensor TensorResolver::strided(std::span<const Node> arguments, std::optional<DType> as) {
  need_arguments(arguments, 4, "a tensor");
  const View view = storage(arguments[0]);
  ArchiveTensor out;
  if (!as && !view.dtype) corrupt("a tensor without dtype over an untyped storage");
  out.dtype = as ? *as : *view.dtype;
  out.storage = view.storage;
  out.storage_offset = integer(arguments[1], "a storage offset");
  out.shape = Shape::checked(integers(arguments[2], "a size"));
  out.strides = integers(arguments[3], "strides");
  check_view(out, elements_in(view.size_bytes, out.dtype), view.key);
  check_byte_order(view, out.dtype);
  const auto base = elements_in(view.offset_bytes, out.dtype);
  if (view.offset_bytes % static_cast<std::uint64_t>(element_bytes(out.dtype)) != 0)
    fail(Code::kUnsupported, "a tensor over a part of a storage that begins within an element");
  out.storage_offset += base;  // bounded by the storage, which exists
  return out;
}

ArchiveTensor TensorResolver::quantized(std::span<const Node> arguments) {
  need_arguments(arguments, 7, "_rebuild_qtensor");
  ArchiveTensor out = strided(arguments, std::nullopt);
  if (!is_quantized(out.dtype)) corrupt("a quantized tensor over a storage of another kind");
  out.requires_grad = flag(arguments[5]);
  const auto params = graph_.items(arguments[4]);
  if (params.size() < 3 || graph_.kind(params[0]) != PickleKind::kGlobal)
    corrupt("malformed quantizer parameters");
  QuantParams quant;
  quant.scheme = graph_.global(params[0]).second;
  if (quant.scheme == "per_tensor_affine") {
    if (graph_.kind(params[1]) != PickleKind::kFloat) corrupt("a quantizer scale that is no float");
    quant.scale = graph_.real(params[1]);
    quant.zero_point = integer(params[2], "a zero point");
  } else if (quant.scheme.starts_with("per_channel_affine") && params.size() == 4) {
    quant.scales = quantizer_values(params[1]);
    quant.zero_points = quantizer_values(params[2]);
    // torch goes by the zero points, and saves both schemes under the first one's name.
    if (quant.zero_points.is_tensor())
      quant.scheme = is_floating(archive_.tensors[quant.zero_points.tensor_index()].dtype)
                         ? "per_channel_affine_float_qparams"
                         : "per_channel_affine";
    quant.axis = integer(params[3], "a quantizer axis");
    if (quant.axis < 0 || quant.axis >= out.shape.rank()) corrupt("a quantizer axis out of range");
  } else {
    fail(Code::kUnsupported, fmt::format("quantizer scheme {}", printable(quant.scheme)));
  }
  out.quant = static_cast<std::int32_t>(archive_.quant.size());
  archive_.quant.push_back(std::move(quant));
  return out;
}

Value TensorResolver::quantizer_values(Node node) {
  if (const auto index = tensor(node, 1)) return Value::tensor(*index);
  if (graph_.kind(node) != PickleKind::kList) corrupt("quantizer values that are no tensor");
  ValueList values;
  for (const Node item : graph_.items(node)) {
    if (graph_.kind(item) == PickleKind::kFloat) {
      values.push_back(Value::real(graph_.real(item)));
    } else {
      values.push_back(Value::integer(integer(item, "a quantizer value")));
    }
  }
  return Value::list(std::move(values));
}

ArchiveTensor TensorResolver::sparse(std::span<const Node> arguments, int depth) {
  using Layout = ArchiveTensor::Layout;
  static constexpr std::pair<std::string_view, Layout> kLayouts[] = {
      {"torch.sparse_coo", Layout::kSparseCoo},
      {"torch.sparse_csr", Layout::kSparseCsr},
      {"torch.sparse_csc", Layout::kSparseCsc},
      {"torch.sparse_bsr", Layout::kSparseBsr},
      {"torch.sparse_bsc", Layout::kSparseBsc}};
  need_arguments(arguments, 2, "_rebuild_sparse_tensor");
  if (!graph_.is_call(arguments[0], "torch.serialization", "_get_layout"))
    corrupt("a sparse tensor without layout");
  const auto layout_arguments = graph_.items(graph_.arguments(arguments[0]));
  need_arguments(layout_arguments, 1, "_get_layout");
  const std::string_view name = string(layout_arguments[0], "a layout");
  const auto found = std::find_if(std::begin(kLayouts), std::end(kLayouts),
                                  [&](const auto& row) { return row.first == name; });
  if (found == std::end(kLayouts))
    fail(Code::kUnsupported, fmt::format("sparse layout {}", printable(name)));
  const auto data = graph_.items(arguments[1]);
  const std::size_t count = found->second == Layout::kSparseCoo ? 2 : 3;
  need_arguments(data, count + 1, "_rebuild_sparse_tensor");
  ArchiveTensor out;
  out.layout = found->second;
  for (const Node part : data.first(count)) {
    const auto index = tensor(part, depth + 1);
    if (!index || archive_.tensors[*index].layout != Layout::kStrided)
      corrupt("a part of a sparse tensor is no dense tensor");
    out.parts.push_back(*index);
    const DType dtype = archive_.tensors[*index].dtype;
    // torch converts what else it is given.
    if (out.parts.size() < count && dtype != DType::kInt64 &&
        (dtype != DType::kInt32 || out.layout == Layout::kSparseCoo))
      corrupt(fmt::format("indices of a sparse tensor are of type {}", torch_name(dtype)));
  }
  out.shape = Shape::checked(integers(data[count], "a size"));
  out.dtype = archive_.tensors[out.parts.back()].dtype;
  out.requires_grad = archive_.tensors[out.parts.back()].requires_grad;
  return out;
}

ArchiveTensor TensorResolver::meta(std::span<const Node> arguments) {
  need_arguments(arguments, 4, "_rebuild_meta_tensor_no_storage");
  ArchiveTensor out;
  out.layout = ArchiveTensor::Layout::kMeta;
  out.dtype = dtype(arguments[0]);
  out.shape = Shape::checked(integers(arguments[1], "a size"));
  out.strides = integers(arguments[2], "strides");
  out.requires_grad = flag(arguments[3]);
  return out;
}

ArchiveTensor TensorResolver::moved_to_device(std::span<const Node> arguments, int depth) {
  need_arguments(arguments, 4, "_rebuild_device_tensor_from_cpu_tensor");
  const auto data = tensor(arguments[0], depth + 1);
  if (!data) corrupt("a device tensor whose data is no tensor");
  ArchiveTensor out = archive_.tensors[*data];
  if (out.dtype != dtype(arguments[1]))
    fail(Code::kUnsupported, "a device tensor stored in another dtype than its own");
  out.requires_grad = flag(arguments[3]);
  return out;
}

void TensorResolver::set_flags(ArchiveTensor& tensor, Node metadata) const {
  if (graph_.kind(metadata) != PickleKind::kDict && graph_.kind(metadata) != PickleKind::kNone)
    corrupt("tensor metadata that is no dict");
  const auto entries = graph_.dict_items(metadata);
  for (std::size_t i = 0; i + 1 < entries.size(); i += 2) {
    const std::string_view key = string(entries[i], "tensor metadata");
    // torch sets a flag that is named, whatever its value; writers name those that are set.
    if (graph_.kind(entries[i + 1]) != PickleKind::kBool || !graph_.boolean(entries[i + 1]))
      corrupt(fmt::format("tensor metadata names \"{}\", which is not set", printable(key)));
    if (key == "conj" && is_complex(tensor.dtype)) {
      tensor.flags |= Source::kConj;
    } else if (key == "neg") {
      tensor.flags |= Source::kNeg;
    } else {
      fail(Code::kUnsupported, fmt::format("tensor metadata \"{}\"", printable(key)));
    }
  }
}

}  // namespace tessera

#include <tessera/encoding/pickle_globals.h>
#include <tessera/tensor/dtype.h>

#include <algorithm>
#include <array>

namespace tessera {
namespace {

using Verdict = GlobalUse::Verdict;
using Name = std::pair<std::string_view, std::string_view>;

// A denied name covers its submodules. The underscored twins are the same modules by another name.
constexpr std::array kDeniedModules = {
    std::string_view("posix"),      std::string_view("nt"),
    std::string_view("os"),         std::string_view("sys"),
    std::string_view("subprocess"), std::string_view("importlib"),
    std::string_view("runpy"),      std::string_view("ctypes"),
    std::string_view("socket"),     std::string_view("shutil"),
    std::string_view("pickle"),     std::string_view("cPickle"),
    std::string_view("_pickle"),    std::string_view("_socket"),
    std::string_view("_ctypes"),    std::string_view("_posixsubprocess"),
};

// Types of plain data. `getattr` is judged by its arguments and by what becomes of its result.
constexpr std::array kKnownBuiltins = {
    std::string_view("set"),      std::string_view("frozenset"), std::string_view("bytearray"),
    std::string_view("bytes"),    std::string_view("complex"),   std::string_view("int"),
    std::string_view("float"),    std::string_view("str"),       std::string_view("bool"),
    std::string_view("list"),     std::string_view("tuple"),     std::string_view("dict"),
    std::string_view("object"),   std::string_view("slice"),     std::string_view("range"),
    std::string_view("Ellipsis"), std::string_view("getattr"),
};

constexpr Name kKnownNames[] = {
    {"collections", "OrderedDict"},
    {"collections", "Counter"},
    {"collections", "defaultdict"},
    {"_codecs", "encode"},
    {"_io", "BytesIO"},
    {"torch", "Size"},
    {"torch", "Tensor"},
    {"torch", "device"},
    {"torch", "per_tensor_affine"},
    {"torch", "per_tensor_symmetric"},
    {"torch", "per_channel_affine"},
    {"torch", "per_channel_symmetric"},
    {"torch", "per_channel_affine_float_qparams"},
    {"torch.serialization", "_get_layout"},
    {"torch.nn.parameter", "Parameter"},
    {"torch.nn.parameter", "Buffer"},
    {"torch._tensor", "_rebuild_from_type"},
    {"torch._tensor", "_rebuild_from_type_v2"},
    {"torch._utils", "_rebuild_tensor"},
    {"torch._utils", "_rebuild_tensor_v2"},
    {"torch._utils", "_rebuild_tensor_v3"},
    {"torch._utils", "_rebuild_parameter"},
    {"torch._utils", "_rebuild_parameter_with_state"},
    {"torch._utils", "_rebuild_qtensor"},
    {"torch._utils", "_rebuild_sparse_tensor"},
    {"torch._utils", "_rebuild_meta_tensor_no_storage"},
    {"torch._utils", "_rebuild_device_tensor_from_cpu_tensor"},
    {"torch._utils", "_rebuild_device_tensor_from_numpy"},
    {"torch._utils", "_rebuild_wrapper_subclass"},
    {"numpy", "ndarray"},
    {"numpy", "dtype"},
    {"numpy.core.multiarray", "_reconstruct"},
    {"numpy.core.multiarray", "scalar"},
    {"numpy._core.multiarray", "_reconstruct"},
    {"numpy._core.multiarray", "scalar"},
    {"pathlib", "Path"},
    {"pathlib", "PosixPath"},
    {"pathlib", "PurePosixPath"},
    {"pathlib", "WindowsPath"},
    {"pathlib", "PureWindowsPath"},
    {"olmo_core.distributed.checkpoint.filesystem", "_StorageInfo"},
    {"torch.distributed.device_mesh", "DeviceMesh"},
    {"torch.distributed.remote_device", "_remote_device"},
};

// Modules of dataclasses and enums that the formats read; every name in them is data.
constexpr std::array kKnownModules = {
    std::string_view("pathlib._local"),
    std::string_view("torch.distributed.checkpoint.metadata"),
    std::string_view("torch.distributed._shard.checkpoint.metadata"),
    std::string_view("torch.distributed.checkpoint.planner"),
    std::string_view("torch.distributed._shard.sharded_tensor.metadata"),
    std::string_view("torch.distributed._shard.sharded_tensor.shard"),
    std::string_view("torch.distributed._shard.metadata"),
    std::string_view("torch.distributed._shard.sharding_spec.api"),
    std::string_view("torch.distributed._shard.sharding_spec.chunk_sharding_spec"),
    std::string_view("torch.distributed.remote_device"),
    std::string_view("torch.distributed.tensor._dtensor_spec"),
    std::string_view("torch.distributed.tensor.placement_types"),
    std::string_view("torch.distributed._tensor.placement_types"),
    std::string_view("torch.distributed._mesh_layout"),
};

constexpr Name kKnownClasses[] = {
    {"torch.distributed.checkpoint.filesystem", "_StorageInfo"},
    {"torch.distributed._shard.checkpoint.filesystem", "_StorageInfo"},
    {"torch.distributed._shard.sharded_tensor.api", "ShardedTensor"},
    {"torch.distributed.tensor", "DTensor"},
    {"torch.distributed._tensor.api", "DTensor"},
    {"deepspeed.runtime.zero.config", "ZeroStageEnum"},
    {"deepspeed.runtime.fp16.loss_scaler", "LossScaler"},
    {"deepspeed.utils.tensor_fragment", "fragment_address"},
    {"torch.distributed.tensor._api", "DTensor"},
};

// Modules of Python 2 whose names lead elsewhere today, of those whose new home matters here.
// Source: IMPORT_MAPPING and NAME_MAPPING in Lib/_compat_pickle.py.
constexpr std::pair<std::string_view, std::string_view> kMovedModules[] = {
    {"__builtin__", "builtins"},   {"copy_reg", "copyreg"},    {"UserDict", "collections"},
    {"UserList", "collections"},   {"commands", "subprocess"}, {"StringIO", "io"},
    {"UserString", "collections"}, {"cStringIO", "io"},        {"torch.tensor", "torch._tensor"},
};

template <class Range, class T>
bool contains(const Range& range, const T& item) {
  return std::find(std::begin(range), std::end(range), item) != std::end(range);
}

bool is_in_module(std::string_view module, std::string_view parent) {
  return module == parent || (module.size() > parent.size() && module.starts_with(parent) &&
                              module[parent.size()] == '.');
}

bool is_identifier(std::string_view text) {
  constexpr std::string_view kFirst = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_";
  return !text.empty() && kFirst.find(text.front()) != std::string_view::npos &&
         std::all_of(text.begin(), text.end(), [&](char c) {
           return (c >= '0' && c <= '9') || kFirst.find(c) != std::string_view::npos;
         });
}

/// A class by the custom of Python: a module that another one holds (random._os) is named in small
/// letters.
bool is_class_name(std::string_view name) {
  if (!is_identifier(name)) return false;
  name.remove_prefix(std::min(name.find_first_not_of('_'), name.size()));
  return !name.empty() && name.front() >= 'A' && name.front() <= 'Z';
}

/// Whether a part of a name is that of a module that is denied, held by another one under its own
/// name or a private one: random._os.system is os.system. So is what goes through the double
/// underscores of a class: its functions' globals hold everything.
bool leads_to_denied(std::string_view name) {
  const bool dotted = name.find('.') != std::string_view::npos;
  while (!name.empty()) {
    std::string_view part = name.substr(0, name.find('.'));
    name.remove_prefix(std::min(part.size() + 1, name.size()));
    if (part == "__builtins__" || (dotted && part.starts_with("__"))) return true;
    part.remove_prefix(std::min(part.find_first_not_of('_'), part.size()));
    if (part == "builtins" || contains(kDeniedModules, part)) return true;
  }
  return false;
}

bool is_torch_data(std::string_view module, std::string_view name) {
  if (module == "torch.storage") return name == "UntypedStorage" || name == "TypedStorage";
  if (module != "torch" && module != "torch.cuda" && module != "torch.sparse" &&
      module != "torch.cuda.sparse")
    return false;
  if (name.ends_with("Storage") || name.ends_with("Tensor")) return true;
  return module == "torch" && dtype_from_torch_name(name).has_value();
}

}  // namespace

std::pair<std::string_view, std::string_view> canonical_global(std::string_view module,
                                                               std::string_view name) {
  if (module == "itertools" && (name == "imap" || name == "izip" || name == "ifilter"))
    return {"builtins", name.substr(1)};
  const auto* moved =
      std::ranges::find(kMovedModules, module, [](const auto& row) { return row.first; });
  if (moved != std::end(kMovedModules)) module = moved->second;
  if (module == "builtins") {
    if (name == "unicode") name = "str";
    if (name == "long") name = "int";
    if (name == "xrange") name = "range";
  }
  return {module, name};
}

Verdict classify_global(std::string_view module, std::string_view name) {
  if (module == "builtins") {
    return contains(kKnownBuiltins, name) ? Verdict::kKnown : Verdict::kDenied;
  }
  for (const std::string_view denied : kDeniedModules) {
    if (is_in_module(module, denied)) return Verdict::kDenied;
  }
  if (leads_to_denied(name)) return Verdict::kDenied;
  const bool known = is_known_by_name(module, name) || contains(kKnownModules, module);
  return known ? Verdict::kKnown : Verdict::kOpaque;
}

bool is_known_by_name(std::string_view module, std::string_view name) {
  const Name global{module, name};
  if (module == "builtins") return contains(kKnownBuiltins, name);
  return contains(kKnownNames, global) || contains(kKnownClasses, global) ||
         is_torch_data(module, name);
}

bool is_allowed_getattr(std::string_view class_module, std::string_view class_name,
                        std::string_view attribute) {
  if (class_name == "MEM_FORMAT_ENCODING" || class_name == "_MEM_FORMAT_ENCODING") {
    return (class_module == "torch.distributed._shard.sharded_tensor.metadata" ||
            class_module == "torch.distributed.checkpoint.metadata" ||
            class_module == "torch.distributed._shard.checkpoint.metadata") &&
           (attribute == "TORCH_CONTIGUOUS_FORMAT" || attribute == "TORCH_CHANNELS_LAST" ||
            attribute == "TORCH_PRESERVE_FORMAT");
  }
  return class_module == "torch.distributed._shard.sharded_tensor.api" &&
         class_name == "ShardedTensor" && attribute == "ProcessGroupState";
}

bool is_enum_member(std::string_view class_module, std::string_view class_name,
                    std::string_view attribute) {
  return is_class_name(class_name) && is_identifier(attribute) && !attribute.starts_with("__") &&
         class_module != "builtins" &&
         classify_global(class_module, class_name) != Verdict::kDenied &&
         !leads_to_denied(attribute);
}

std::optional<std::int64_t> known_enum_number(std::string_view class_module,
                                              std::string_view class_name,
                                              std::string_view attribute) {
  if (class_module != "deepspeed.runtime.zero.config" || class_name != "ZeroStageEnum")
    return std::nullopt;
  constexpr std::array kStages = {std::string_view("disabled"),
                                  std::string_view("optimizer_states"),
                                  std::string_view("gradients"), std::string_view("weights")};
  const auto* found = std::find(kStages.begin(), kStages.end(), attribute);
  if (found == kStages.end()) return std::nullopt;
  return found - kStages.begin();
}

}  // namespace tessera

// Storages of a torch pickle: what persistent ids name, the views on them, and that a key means one
// type and place.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <tessera/base/checked.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include <algorithm>
#include <array>

#include "lib/encoding/torch_storages.h"
#include "lib/encoding/torch_tensors.h"

namespace tessera {
namespace {

/// What swapping the bytes of an element works on: the parts of a complex number alone.
std::int64_t swapped_bytes(DType dtype) {
  return is_complex(dtype) ? element_bytes(dtype) / 2 : element_bytes(dtype);
}

}  // namespace

std::int64_t TensorResolver::elements_in(std::uint64_t bytes, DType dtype) {
  if (is_sub_byte(dtype) || dtype == DType::kQUInt4x2 || dtype == DType::kQUInt2x4)
    fail(Code::kUnsupported, fmt::format("tensors of packed dtype {}", torch_name(dtype)));
  return static_cast<std::int64_t>(bytes / static_cast<std::uint64_t>(element_bytes(dtype)));
}

/// A view must stay inside its storage, an empty one begin in it or at its end.
void TensorResolver::check_view(const ArchiveTensor& tensor, std::int64_t storage_numel,
                                std::string_view key) {
  const auto refuse = [&](std::string_view what) {
    corrupt(fmt::format("a tensor of shape {} over storage \"{}\" ({} elements) {}",
                        tensor.shape.to_string(), printable(key), storage_numel, what));
  };
  if (tensor.strides.size() != static_cast<std::size_t>(tensor.shape.rank()))
    refuse("has a different number of strides");
  if (tensor.storage_offset < 0) refuse("begins before it");
  std::optional<std::int64_t> last = tensor.storage_offset;
  for (std::size_t d = 0; d < tensor.strides.size(); ++d) {
    if (tensor.strides[d] < 0) refuse("has a negative stride");
    const std::int64_t steps = std::max<std::int64_t>(tensor.shape[static_cast<int>(d)] - 1, 0);
    const auto reach = checked_mul(steps, tensor.strides[d]);
    last = last && reach ? checked_add(*last, *reach) : std::nullopt;
  }
  const bool empty = tensor.shape.numel() == 0;
  if (empty ? tensor.storage_offset > storage_numel : !last || *last >= storage_numel)
    refuse(fmt::format("leaves it (offset {}, strides [{}])", tensor.storage_offset,
                       fmt::join(tensor.strides, ",")));
}

TensorResolver::View TensorResolver::storage(Node node) {
  if (graph_.kind(node) != PickleKind::kPersistentId) corrupt("a tensor without a storage");
  const auto id = graph_.items(graph_.arguments(node));
  if (id.size() < 5 || string(id[0], "a persistent id") != "storage")
    corrupt("a persistent id that names no storage");
  if (graph_.kind(id[1]) != PickleKind::kGlobal) corrupt("a storage without class");
  const auto [module, name] = graph_.global(id[1]);
  View view;
  view.dtype = storage_class_dtype(name);
  if (!module.starts_with("torch") || (!view.dtype && !name.ends_with("UntypedStorage")))
    fail(Code::kUnsupported,
         fmt::format("storage class {}.{}", printable(module), printable(name)));
  view.key = string(id[2], "a storage key");
  if (string(id[3], "a storage's device") == "meta")
    fail(Code::kUnsupported,
         fmt::format("storage \"{}\" is on the meta device: torch.load leaves its data out",
                     printable(view.key)));
  const std::int64_t item = view.dtype ? element_bytes(*view.dtype) : 1;
  const std::int64_t numel = integer(id[4], "a storage's element count");
  const auto bytes = checked_mul(numel, item);
  if (!bytes || *bytes < 0) corrupt(fmt::format("storage \"{}\": bad size", printable(view.key)));
  view.size_bytes = static_cast<std::uint64_t>(*bytes);
  const auto [found, is_new] =
      storages_.try_emplace(view.key, static_cast<std::uint32_t>(archive_.storages.size()));
  if (is_new)
    archive_.storages.push_back(
        open_storage_(view.key, {static_cast<std::uint64_t>(numel), view.size_bytes}));
  view.storage = found->second;
  if (archive_.storages[view.storage].size_bytes != view.size_bytes)
    corrupt(fmt::format("storage \"{}\" holds {} bytes, the pickle says {}", printable(view.key),
                        archive_.storages[view.storage].size_bytes, view.size_bytes));
  if (id.size() < 6 || graph_.kind(id[5]) == PickleKind::kNone) return view;
  if (!archive_.legacy || id.size() > 6) corrupt("a persistent id of too many parts");
  const auto part = graph_.items(id[5]);  // legacy: (key, offset, element count)
  need_arguments(part, 3, "a storage view");
  const auto offset = checked_mul(integer(part[1], "a storage view's offset"), item);
  const auto size = checked_mul(integer(part[2], "a storage view's size"), item);
  if (!offset || !size || *offset < 0 || *size < 0 || *offset > *bytes || *size > *bytes - *offset)
    corrupt(fmt::format("a view leaves storage \"{}\"", printable(view.key)));
  view.offset_bytes = static_cast<std::uint64_t>(*offset);
  view.size_bytes = static_cast<std::uint64_t>(*size);
  return view;
}

/// As a tensor of all its elements; PyTorch gives the storage itself.
Value TensorResolver::bare_storage(Node node) {
  const View view = storage(node);
  ArchiveTensor all;
  all.dtype = view.dtype && !is_quantized(*view.dtype) ? *view.dtype : DType::kUInt8;
  all.storage = view.storage;
  all.storage_offset = elements_in(view.offset_bytes, all.dtype);
  all.shape = Shape::checked(std::array{elements_in(view.size_bytes, all.dtype)});
  all.strides = {1};
  OpaqueObject bare;
  bare.how = OpaqueObject::How::kPersistentId;
  bare.module = "torch.storage";
  bare.name = "UntypedStorage";
  bare.arguments = Value::list({Value::tensor(static_cast<std::uint32_t>(archive_.tensors.size())),
                                view.dtype ? Value::dtype(*view.dtype) : Value()},
                               Value::Kind::kTuple);
  archive_.tensors.push_back(std::move(all));
  return Value::opaque(std::move(bare));
}

/// If a key occurs more than once among storages that hold something, torch keeps its first type
/// and place.
void TensorResolver::check_storage(Node node) {
  const auto id = graph_.items(graph_.arguments(node));
  if (id.size() < 5 || graph_.kind(id[1]) != PickleKind::kGlobal ||
      graph_.kind(id[2]) != PickleKind::kString || graph_.kind(id[4]) != PickleKind::kInt)
    return;  // refused where it is used
  const auto dtype = storage_class_dtype(graph_.global(id[1]).second);
  const std::string key(graph_.text(id[2]));
  if (graph_.integer(id[4]) != 0)
    check_first_use(key, {.dtype = dtype.value_or(DType::kUInt8), .root = key});
  const auto view = id.size() > 5 ? graph_.items(id[5]) : std::span<const Node>{};
  if (view.size() != 3 || graph_.kind(view[0]) != PickleKind::kString) return;
  check_first_use(graph_.text(view[0]), {.dtype = dtype.value_or(DType::kUInt8),
                                         .root = key,
                                         .offset = integer(view[1], "a storage view's offset"),
                                         .numel = integer(view[2], "a storage view's size")});
}

void TensorResolver::check_first_use(std::string_view key, FirstUse use) {
  const auto [found, is_new] = first_uses_.try_emplace(std::string(key), std::move(use));
  if (!is_new && !(found->second == use))
    corrupt(
        fmt::format("storage \"{}\" stands for two types or places, of which torch takes the "
                    "first",
                    printable(key)));
}

/// torch.load swaps the bytes of whole storages, by the storage's type, and never those of an
/// untyped one.
void TensorResolver::check_byte_order(const View& view, DType dtype) const {
  const std::int64_t swapped = view.dtype ? swapped_bytes(*view.dtype) : 1;
  if (archive_.big_endian && swapped != swapped_bytes(dtype))
    fail(Code::kUnsupported,
         fmt::format("a big-endian tensor of type {} over a storage of another type, whose bytes "
                     "torch.load would leave in their order",
                     torch_name(dtype)));
}

void TensorResolver::open_all_storages() {
  for (Node node = 0; node < graph_.node_count(); ++node) {
    if (graph_.kind(node) != PickleKind::kPersistentId) continue;
    const auto id = graph_.items(graph_.arguments(node));
    // Others are the source texts of modules.
    if (!id.empty() && graph_.kind(id[0]) == PickleKind::kString && graph_.text(id[0]) == "storage")
      storage(node);
  }
}

}  // namespace tessera

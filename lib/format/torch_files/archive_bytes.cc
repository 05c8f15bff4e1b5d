#include "lib/format/torch_files/archive_bytes.h"

#include <tessera/base/error.h>
#include <tessera/state/roles.h>
#include <tessera/tensor/cast.h>
#include <tessera/tensor/region_copy.h>

#include <vector>

#include "lib/format/torch_files/archive_source.h"
#include "lib/state/tensor_remapper.h"

namespace tessera {
namespace {

constexpr std::uint64_t kSmallBytes = 4096;

/// The value with its tensors numbered in order of appearance, and those tensors.
struct Numbered {
  Value value;
  std::vector<std::uint32_t> tensors;
};
Numbered numbered(const Value& value) {
  Numbered out;
  TensorRemapper remap([&](std::uint32_t index) {
    out.tensors.push_back(index);
    return static_cast<std::uint32_t>(out.tensors.size() - 1);
  });
  out.value = remap(value);
  return out;
}

}  // namespace

const ArchiveTensor& ArchiveBytes::tensor(TensorRef ref) const {
  return builder_.archive(ref.file).tensors.at(ref.tensor);
}

const TorchArchive& ArchiveBytes::located(std::uint32_t file) {
  if (const auto known = located_.find(file); known != located_.end()) return known->second;
  TorchArchive archive = builder_.archive(file);
  const std::string& path = builder_.manifest().files.at(file).path;
  in_file(path, [&] {
    const auto open = directory_.open(path);
    if (!archive.legacy) locate_storages(ByteWindow::whole(*open), archive);
  });
  return located_.emplace(file, std::move(archive)).first->second;
}

Bytes ArchiveBytes::read(TensorRef ref, std::int64_t first, std::int64_t numel) {
  const TorchArchive& archive = located(ref.file);
  const ArchiveTensor& from = archive.tensors.at(ref.tensor);
  if (!is_dense(from) || is_sub_byte(from.dtype) || from.flags != 0 || first < 0 || numel < 0 ||
      first > from.shape.numel() || numel > from.shape.numel() - first)
    fail(Code::kUnsupported, "a small tensor that is strided, sparse or packed");
  const auto item = static_cast<std::uint64_t>(element_bytes(from.dtype));
  const std::string& path = builder_.manifest().files.at(ref.file).path;
  return in_file(path, [&] {
    const auto open = directory_.open(path);
    Bytes bytes = ByteWindow::whole(*open).read(
        archive.storages[from.storage].offset +
            static_cast<std::uint64_t>(from.storage_offset + first) * item,
        static_cast<std::uint64_t>(numel) * item);
    if (archive.big_endian) swap_bytes(bytes, swap_unit_bytes(from.dtype));
    return bytes;
  });
}

std::optional<Value> ArchiveBytes::number(TensorRef ref) {
  const ArchiveTensor& from = tensor(ref);
  if (from.shape.numel() != 1 || from.quant >= 0 || !is_castable(from.dtype)) return std::nullopt;
  const Bytes bytes = read(ref, 0, 1);
  if (from.dtype == DType::kBool) return Value::boolean(bytes[0] != std::byte{0});
  if (!is_floating(from.dtype)) {
    std::byte wide[8];
    cast_elements(from.dtype, bytes, DType::kInt64, wide);
    return Value::integer(load_le<std::int64_t>(wide));
  }
  double value = 0;
  to_double(from.dtype, bytes, {&value, 1});
  return Value::real(value);
}

const ArchiveStorage* ArchiveBytes::own_storage(TensorRef ref) const {
  const TorchArchive& archive = builder_.archive(ref.file);
  const ArchiveTensor& from = archive.tensors[ref.tensor];
  if (!is_dense(from) || from.flags != 0 || from.quant >= 0) return nullptr;
  const ArchiveStorage& storage = archive.storages[from.storage];
  const bool all = from.storage_offset == 0 &&
                   static_cast<std::uint64_t>(TensorSpec{from.dtype, from.shape}.size_bytes()) ==
                       storage.size_bytes;
  return all && storage.has_crc ? &storage : nullptr;
}

ArchiveBytes::Answer ArchiveBytes::same(TensorRef a, TensorRef b) {
  if (a.file == b.file && a.tensor == b.tensor) return Answer::kEqual;
  const ArchiveTensor &left = tensor(a), &right = tensor(b);
  if (left.dtype != right.dtype || left.shape != right.shape) return Answer::kDifferent;
  if (left.shape.numel() == 0) return Answer::kEqual;
  const ArchiveStorage *mine = own_storage(a), *theirs = own_storage(b);
  if (mine && theirs && builder_.archive(a.file).big_endian == builder_.archive(b.file).big_endian)
    return mine->crc32 == theirs->crc32 ? Answer::kEqual : Answer::kDifferent;
  const bool plain = is_dense(left) && is_dense(right) && !is_sub_byte(left.dtype) &&
                     left.flags == 0 && right.flags == 0;
  const auto bytes = static_cast<std::uint64_t>(TensorSpec{left.dtype, left.shape}.size_bytes());
  if (!plain || bytes > kSmallBytes) return Answer::kUnknown;
  return read(a, 0, left.shape.numel()) == read(b, 0, right.shape.numel()) ? Answer::kEqual
                                                                           : Answer::kDifferent;
}

ArchiveBytes::Answer ArchiveBytes::same(std::uint32_t file_a, const Value& a, std::uint32_t file_b,
                                        const Value& b) {
  const Numbered left = numbered(a), right = numbered(b);
  if (left.tensors.size() != right.tensors.size() || !(left.value == right.value))
    return Answer::kDifferent;
  Answer answer = Answer::kEqual;
  for (std::size_t i = 0; i < left.tensors.size(); ++i) {
    const Answer one =
        same(TensorRef{file_a, left.tensors[i]}, TensorRef{file_b, right.tensors[i]});
    if (one == Answer::kDifferent) return one;
    if (one == Answer::kUnknown) answer = one;
  }
  return answer;
}

}  // namespace tessera

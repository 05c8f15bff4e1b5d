#include "lib/format/torch_files/archive_bytes.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/encoding/zip_reader.h>
#include <tessera/state/roles.h>
#include <tessera/tensor/cast.h>
#include <tessera/tensor/region_copy.h>

#include <algorithm>
#include <vector>

#include "lib/format/torch_files/archive_source.h"
#include "lib/state/edit/tensor_remapper.h"

namespace tessera {
namespace {

// What is read to compare two tensors: all of them, or blocks from one end to the other.
constexpr std::int64_t kSmallBytes = std::int64_t{64} << 10;
constexpr std::int64_t kBlockBytes = 4096;
constexpr std::int64_t kBlocks = 16;

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

bool fills_storage(const TorchArchive& archive, const ArchiveTensor& tensor) {
  const ArchiveStorage& storage = archive.storages[tensor.storage];
  return is_dense(tensor) && tensor.storage_offset == 0 &&
         static_cast<std::uint64_t>(TensorSpec{tensor.dtype, tensor.shape}.size_bytes()) ==
             storage.size_bytes;
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
    if (archive.legacy) return;
    try {
      locate_storages(ByteWindow::whole(*open), archive);
    } catch (const Error& error) {
      // One bad record: the others are located when they are asked for.
      if (error.code() != Code::kCorrupt) throw;
    }
  });
  return located_.emplace(file, std::move(archive)).first->second;
}

std::uint64_t ArchiveBytes::offset_of(const ArchiveStorage& storage, const ByteWindow& window) {
  if (storage.located) return storage.offset;
  ZipReader zip(window);
  const ZipEntry* entry = zip.find("data/" + storage.key);
  if (entry == nullptr)
    fail(Code::kCorrupt, fmt::format("there is no record data/{}", printable(storage.key)));
  return zip.data_offset(*entry);
}

Bytes ArchiveBytes::read(TensorRef ref, std::int64_t first, std::int64_t numel) {
  const TorchArchive& archive = located(ref.file);
  const ArchiveTensor& from = archive.tensors.at(ref.tensor);
  if (!is_readable(ref) || first < 0 || numel < 0 || first > from.shape.numel() ||
      numel > from.shape.numel() - first)
    fail(Code::kUnsupported, "a small tensor that is strided, sparse or packed");
  const auto item = static_cast<std::uint64_t>(element_bytes(from.dtype));
  const std::string& path = builder_.manifest().files.at(ref.file).path;
  return in_file(path, [&] {
    const auto open = directory_.open(path);
    const ByteWindow window = ByteWindow::whole(*open);
    Bytes bytes = window.read(offset_of(archive.storages[from.storage], window) +
                                  static_cast<std::uint64_t>(from.storage_offset + first) * item,
                              static_cast<std::uint64_t>(numel) * item);
    if (archive.big_endian) swap_bytes(bytes, swap_unit_bytes(from.dtype));
    return bytes;
  });
}

bool ArchiveBytes::is_readable(TensorRef ref) const {
  const ArchiveTensor& from = tensor(ref);
  return is_dense(from) && !is_sub_byte(from.dtype) && from.flags == 0;
}

std::optional<Value> ArchiveBytes::number(TensorRef ref, bool* damaged) {
  const ArchiveTensor& from = tensor(ref);
  if (from.shape.numel() != 1 || from.quant >= 0 || !is_castable(from.dtype)) return std::nullopt;
  const Bytes bytes = read(ref, 0, 1);
  if (!prove_storage(ref)) {
    if (damaged != nullptr) *damaged = true;
    return std::nullopt;
  }
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

bool ArchiveBytes::prove_storage(TensorRef ref) {
  const TorchArchive& archive = located(ref.file);
  const ArchiveStorage& storage = archive.storages[archive.tensors[ref.tensor].storage];
  const ReadOptions& options = builder_.options();
  if (!options.check_crc || !storage.has_crc || storage.size_bytes > kSmallBytes) return true;
  const std::string& path = builder_.manifest().files.at(ref.file).path;
  try {
    in_file(path, [&] {
      const auto open = directory_.open(path);
      const ByteWindow window = ByteWindow::whole(*open);
      check_storage(storage, window.read(offset_of(storage, window), storage.size_bytes));
    });
  } catch (const Error& error) {
    if (error.code() != Code::kCorrupt || !options.tolerate_damage) throw;
    builder_.manifest().notes.push_back(
        {Finding::kBadChecksum, Severity::kError, error.status().message, path, ""});
    return false;
  }
  return true;
}

std::optional<bool> known_equal(const TorchArchive& a, std::uint32_t i, const TorchArchive& b,
                                std::uint32_t j) {
  const ArchiveTensor &x = a.tensors[i], &y = b.tensors[j];
  if (x.dtype != y.dtype || x.shape != y.shape) return false;
  if (x.shape.numel() == 0) return true;
  const bool plain = x.layout == ArchiveTensor::Layout::kStrided && x.quant < 0;
  const bool alike = x.layout == y.layout && x.quant == y.quant && x.flags == y.flags;
  if (!plain || !alike || a.big_endian != b.big_endian) return std::nullopt;
  const ArchiveStorage &s = a.storages[x.storage], &t = b.storages[y.storage];
  if (!s.has_crc || !t.has_crc) return std::nullopt;
  const bool same_storage = s.crc32 == t.crc32 && s.size_bytes == t.size_bytes;
  if (same_storage && x.storage_offset == y.storage_offset && x.strides == y.strides) return true;
  if (!same_storage && fills_storage(a, x) && fills_storage(b, y)) return false;
  return std::nullopt;
}

ArchiveBytes::Answer ArchiveBytes::same(TensorRef a, TensorRef b) {
  if (a.file == b.file && a.tensor == b.tensor) return Answer::kEqual;
  if (const auto known =
          known_equal(builder_.archive(a.file), a.tensor, builder_.archive(b.file), b.tensor))
    return *known ? Answer::kEqual : Answer::kDifferent;
  if (!is_readable(a) || !is_readable(b)) return Answer::kUnknown;
  return compare(a, b, tensor(a).shape.numel(), element_bytes(tensor(a).dtype));
}

ArchiveBytes::Answer ArchiveBytes::compare(TensorRef a, TensorRef b, std::int64_t numel,
                                           std::int64_t item_bytes) {
  const auto equal = [&](std::int64_t first, std::int64_t length) {
    return read(a, first, length) == read(b, first, length);
  };
  if (numel <= kSmallBytes / item_bytes)
    return equal(0, numel) ? Answer::kEqual : Answer::kDifferent;
  const std::int64_t length = kBlockBytes / item_bytes, last = numel - length;
  for (std::int64_t i = 0; i < kBlocks; ++i)
    if (!equal(last / (kBlocks - 1) * i, length)) return Answer::kDifferent;
  return equal(last, length) ? Answer::kUnknown : Answer::kDifferent;
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

#include "tests/support/archive_gather.h"

#include <stdexcept>

namespace tessera::test {
namespace {

/// Negates `count` reals of `bytes` bytes each, every `step`-th one.
template <class T>
void negate(Bytes& data, std::size_t first, std::size_t step) {
  for (std::size_t i = first; (i + 1) * sizeof(T) <= data.size(); i += step)
    store_le<T>(data.data() + i * sizeof(T), -load_le<T>(data.data() + i * sizeof(T)));
}

void negate_reals(DType dtype, Bytes& data, std::size_t first, std::size_t step) {
  switch (dtype) {
    case DType::kFloat32:
    case DType::kComplex64:
      return negate<float>(data, first, step);
    case DType::kFloat64:
    case DType::kComplex128:
      return negate<double>(data, first, step);
    default:
      throw std::logic_error("the test cannot negate this dtype");
  }
}

std::vector<std::int64_t> integers(const Bytes& data) {
  std::vector<std::int64_t> out(data.size() / 8);
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = load_le<std::int64_t>(data.data() + 8 * i);
  return out;
}

Bytes dense_of_coo(const ByteWindow& window, const TorchArchive& archive, const ArchiveTensor& t) {
  const auto indices = integers(gather_strided(window, archive, t.parts[0]));
  const Bytes values = gather_strided(window, archive, t.parts[1]);
  const Shape& index_shape = archive.tensors[t.parts[0]].shape;
  const auto dims = static_cast<int>(index_shape[0]);
  const std::int64_t count = index_shape[1];
  const auto item =
      static_cast<std::size_t>(element_bytes(t.dtype) * t.shape.inner_numel(dims - 1));
  Bytes out(static_cast<std::size_t>(t.shape.numel() * element_bytes(t.dtype)));
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t at = 0;
    for (int d = 0; d < dims; ++d)
      at = at * t.shape[d] + indices.at(static_cast<std::size_t>(d * count + i));
    std::copy_n(values.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(i) * item),
                item,
                out.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(at) * item));
  }
  return out;
}

Bytes dense_of_csr(const ByteWindow& window, const TorchArchive& archive, const ArchiveTensor& t) {
  const auto rows = integers(gather_strided(window, archive, t.parts[0]));
  const auto columns = integers(gather_strided(window, archive, t.parts[1]));
  const Bytes values = gather_strided(window, archive, t.parts[2]);
  const auto item = static_cast<std::size_t>(element_bytes(t.dtype));
  Bytes out(static_cast<std::size_t>(t.shape.numel()) * item);
  for (std::size_t r = 0; r + 1 < rows.size(); ++r) {
    for (auto k = static_cast<std::size_t>(rows[r]); k < static_cast<std::size_t>(rows[r + 1]);
         ++k) {
      const std::size_t at =
          r * static_cast<std::size_t>(t.shape[1]) + static_cast<std::size_t>(columns.at(k));
      std::copy_n(values.begin() + static_cast<std::ptrdiff_t>(k * item), item,
                  out.begin() + static_cast<std::ptrdiff_t>(at * item));
    }
  }
  return out;
}

}  // namespace

Bytes gather_strided(const ByteWindow& window, const TorchArchive& archive, std::uint32_t index) {
  const ArchiveTensor& t = archive.tensors.at(index);
  const ArchiveStorage& storage = archive.storages.at(t.storage);
  if (!storage.located) throw std::logic_error("locate first");
  const Bytes data = window.read(storage.offset, storage.size_bytes);
  const int item = element_bytes(t.dtype);
  Bytes out(static_cast<std::size_t>(t.shape.numel() * item));
  if (!out.empty())
    copy_region(t.shape, item, data.data() + t.storage_offset * item, t.strides, out.data(),
                t.shape.strides());
  if (t.flags & Source::kConj) negate_reals(t.dtype, out, 1, 2);
  if (t.flags & Source::kNeg) negate_reals(t.dtype, out, 0, 1);
  return out;
}

Bytes gather(const ByteWindow& window, const TorchArchive& archive, std::uint32_t index) {
  const ArchiveTensor& t = archive.tensors.at(index);
  switch (t.layout) {
    case ArchiveTensor::Layout::kStrided:
      return gather_strided(window, archive, index);
    case ArchiveTensor::Layout::kSparseCoo:
      return dense_of_coo(window, archive, t);
    case ArchiveTensor::Layout::kSparseCsr:
      return dense_of_csr(window, archive, t);
    default:
      throw std::logic_error("the test cannot make this layout dense");
  }
}

}  // namespace tessera::test

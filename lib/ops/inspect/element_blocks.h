#pragma once
// Tensors read block by block as numbers: what optim, stat and diff look at.
#include <tessera/reshard/tensor_reader.h>
#include <tessera/state/manifest.h>
#include <tessera/tensor/cast.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>
#include <vector>

namespace tessera {

/// Elements per block when `streams` tensors are held as bytes and doubles by each of `threads`
/// workers within `limit` bytes.
inline std::int64_t block_elements(std::uint64_t limit, int threads, std::size_t streams) {
  const std::uint64_t share = limit / static_cast<std::uint64_t>(std::max(1, threads)) /
                              std::max<std::size_t>(1, streams) / 24;
  return static_cast<std::int64_t>(std::clamp<std::uint64_t>(share, 4096, std::uint64_t{1} << 20));
}

/// Types whose every value is a float.
inline bool is_float_exact(DType dtype) {
  return element_bytes(dtype) < 4 || dtype == DType::kFloat32;
}

/// Elements of such a type as floats: themselves where they are, else cast into `cast`.
inline std::span<const float> floats_of(DType dtype, ByteView bytes, std::vector<float>& cast) {
  const std::size_t count = bytes.size() / static_cast<std::size_t>(element_bytes(dtype));
  if (dtype == DType::kFloat32 && std::endian::native == std::endian::little)
    return {reinterpret_cast<const float*>(bytes.data()), count};
  cast.resize(count);
  cast_elements(dtype, bytes, DType::kFloat32,
                {reinterpret_cast<std::byte*>(cast.data()), count * sizeof(float)});
  return cast;
}

/// One tensor, read in ranges as doubles.
class DoubleReader {
 public:
  DoubleReader(TensorReader::Reading& reading, const Manifest& manifest, std::uint32_t tensor)
      : reading_(reading), tensor_(tensor), dtype_(manifest.tensors[tensor].spec.dtype) {}

  /// Valid until the next call.
  std::span<const double> read(std::int64_t begin, std::int64_t end) {
    const auto count = static_cast<std::size_t>(end - begin);
    bytes_.resize(count * static_cast<std::size_t>(element_bytes(dtype_)));
    values_.resize(count);
    reading_.read(tensor_, begin, end, bytes_);
    to_double(dtype_, bytes_, values_);
    return values_;
  }

 private:
  TensorReader::Reading& reading_;
  std::uint32_t tensor_;
  DType dtype_;
  Bytes bytes_;
  std::vector<double> values_;
};

}  // namespace tessera

#pragma once
// Several tensors of one shape read side by side, block by block, as doubles or as bytes: what
// optim, stat and diff look at.
#include <tessera/reshard/tensor_reader.h>
#include <tessera/state/manifest.h>
#include <tessera/tensor/cast.h>

#include <algorithm>
#include <functional>
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

/// One tensor, read in ranges as doubles.
class DoubleReader {
 public:
  DoubleReader(const TensorReader& reader, const Manifest& manifest, std::uint32_t tensor)
      : reader_(reader), tensor_(tensor), dtype_(manifest.tensors[tensor].spec.dtype) {}

  /// Valid until the next call.
  std::span<const double> read(std::int64_t begin, std::int64_t end) {
    const auto count = static_cast<std::size_t>(end - begin);
    bytes_.resize(count * static_cast<std::size_t>(element_bytes(dtype_)));
    values_.resize(count);
    reader_.read(tensor_, begin, end, bytes_);
    to_double(dtype_, bytes_, values_);
    return values_;
  }

 private:
  const TensorReader& reader_;
  std::uint32_t tensor_;
  DType dtype_;
  Bytes bytes_;
  std::vector<double> values_;
};

}  // namespace tessera

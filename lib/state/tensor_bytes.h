#pragma once
// Where a tensor's bytes lie: two tensors at one place are one, under two names.
#include <tessera/state/manifest.h>

#include <optional>
#include <tuple>
#include <vector>

namespace tessera {

using TensorPlace =
    std::tuple<std::uint32_t, std::uint64_t, std::uint64_t, DType, std::vector<std::int64_t>>;

/// nullopt where places say nothing: several chunks, no bytes in a file; or a format that stores
/// each name for itself.
inline std::optional<TensorPlace> place_of(const Manifest& manifest, const StoredTensor& tensor) {
  if (tensor.chunk_count != 1 || manifest.names_own_bytes) return std::nullopt;
  const Source& source = manifest.source(tensor, 0);
  const bool in_file =
      source.kind == Source::Kind::kPending || source.kind == Source::Kind::kExtent;
  if (!in_file || source.length == 0) return std::nullopt;
  const auto extents = tensor.spec.shape.extents();
  return TensorPlace{source.file,
                     source.offset,
                     source.length,
                     tensor.spec.dtype,
                     {extents.begin(), extents.end()}};
}

}  // namespace tessera

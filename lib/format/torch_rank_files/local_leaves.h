#pragma once
// Leaves of the optimizers beside flat parameters: torch.optim's state by id, whose 1-D tensors are
// a rank's run of a flat parameter or of a parameter.
#include <algorithm>
#include <cstdint>
#include <optional>

#include "lib/format/torch_files/archive_bytes.h"
#include "lib/format/torch_rank_files/rank_states.h"

namespace tessera::rank_files {

inline bool starts_with(const Path& path, const Path& prefix) {
  return path.size() >= prefix.size() && std::equal(prefix.begin(), prefix.end(), path.begin());
}

/// The id of <prefix>.state.<id>.<leaf ...>, or nothing.
inline std::optional<std::int64_t> state_id(const Path& path, const Path& prefix) {
  const std::size_t at = prefix.size();
  if (path.size() < at + 3 || !starts_with(path, prefix) || !is_key(path[at], "state"))
    return std::nullopt;
  if (path[at + 1].kind != PathItem::Kind::kIntKey) return std::nullopt;
  return path[at + 1].index;
}

inline bool is_array(const RankLeaf& leaf, const ArchiveBytes& bytes) {
  if (leaf.sharded || !leaf.value.is_tensor()) return false;
  return bytes.tensor({leaf.file, leaf.value.tensor_index()}).shape.rank() == 1;
}

inline std::int64_t numel_of(const RankLeaf& leaf, const ArchiveBytes& bytes) {
  return bytes.tensor({leaf.file, leaf.value.tensor_index()}).shape.numel();
}

inline bool all_arrays(const RankEntry& entry, const ArchiveBytes& bytes) {
  return std::ranges::all_of(entry.leaves,
                             [&](const RankLeaf& leaf) { return is_array(leaf, bytes); });
}

}  // namespace tessera::rank_files

#pragma once
// Ties: parameters that are one tensor under two names. Known by content alone: the same stored
// bytes, or equal bytes of a matrix whose elements are not all alike (two fresh LayerNorms are
// equal, and not tied). Never by names.
#include <tessera/ops/open.h>
#include <tessera/reshard/tensor_reader.h>

#include <string>
#include <utility>
#include <vector>

namespace tessera {

/// (later name, first name) of every tie among the leaves of a located manifest. Reads a few
/// hundred bytes of tensors that share type and shape, and all of those that agree there.
std::vector<std::pair<std::string, std::string>> find_ties(const Manifest& manifest,
                                                           const Directory& directory,
                                                           const TransferOptions& options);

/// Leaves out the later name of each tie.
void drop_ties(Manifest& manifest, const std::vector<std::pair<std::string, std::string>>& ties);

}  // namespace tessera

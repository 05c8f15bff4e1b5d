#pragma once
// Ties: parameters that are one tensor under two names. Known by content alone: the same stored
// bytes, or equal bytes of a matrix whose elements are not all alike (two fresh LayerNorms are
// equal, and not tied). Never by names. Where one of the names has optimizer state, that one is
// kept, else an embedding, else one that is in no numbered layer; names that have state of their own
// each are never tied.
#include <tessera/ops/open.h>
#include <tessera/reshard/tensor_reader.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera {

/// (name, name that is kept) of every tie among the weights of each model of a located manifest.
/// Reads a few hundred bytes of tensors of two dims and more, and all of those that agree there.
std::vector<std::pair<std::string, std::string>> find_ties(const Manifest& manifest,
                                                           const Directory& directory,
                                                           const TransferOptions& options);

/// Those of them in which one tensor is stored once, under both names.
std::vector<std::pair<std::string, std::string>> ties_at_one_place(
    const Manifest& manifest, const std::vector<std::pair<std::string, std::string>>& ties);

/// "layers.61.embed_tokens.weight": a name with a number among its parts.
bool in_numbered_layer(std::string_view fqn);

/// Whether two tensors of a located manifest are of one type and shape and hold the same bytes.
bool same_content(const Manifest& manifest, const Directory& directory, std::uint32_t a,
                  std::uint32_t b, const TransferOptions& options);

/// Leaves out the first name of each pair.
void drop_ties(Manifest& manifest, const std::vector<std::pair<std::string, std::string>>& ties);

}  // namespace tessera

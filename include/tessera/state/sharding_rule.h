#pragma once
// The rule that decides which tensors a sharded target splits (everything else is one chunk):
//
//   replicate glob matches the name           no
//   our own manifest says so                  yes; if it lists sharded tensors, every
//                                             unlisted tensor is no
//   the source has more than one distinct
//     chunk (empty ones count; exact
//     replicas do not)                        yes
//   the source's world size is 1 or unknown   yes if it is a parameter, or optimizer state of a
//                                             parameter's shape, of rank >= 1
//   else                                      no
//
// A tensor of rank 0 is never sharded. Pure and thread-safe.
#include <tessera/state/manifest.h>

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// Key in Manifest::provenance: our own manifest lists every sharded tensor
/// (StoredTensor::always_sharded), so that nothing is guessed at world size 1.
inline constexpr std::string_view kShardingListed = "tessera.sharded";

/// `tensor` is one of `source.tensors`. For optimizer state at world size 1 the parameter is looked
/// up by name; use ShardingRule for more than a few tensors.
bool is_sharded(const Manifest& source, const StoredTensor& tensor,
                std::span<const std::string> replicate_globs);

/// The same answer for all tensors of one manifest: is_sharded()[i] for tensors[i]. O(tensors log
/// tensors).
std::vector<bool> sharded_tensors(const Manifest& source,
                                  std::span<const std::string> replicate_globs);

}  // namespace tessera

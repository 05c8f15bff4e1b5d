#pragma once
// What one rank's files hold, found by structure: users choose the keys.
//
//   metadata   a dict with "param_metadata" in the form of local_metadata_dict()
//   optimizer  a dict with "state" and "param_groups"; with "param_id_map" it is the consolidated
//              one
//   weights    the dict whose keys are the backing parameters that the metadata lists
//   the rest   "extras": whatever else the user saved
//
// Values point into the archives' roots, which the caller keeps. Pure.
#include <tessera/state/value.h>

#include <cstdint>
#include <string>
#include <vector>

#include "lib/format/fairscale_fsdp/metadata.h"

namespace tessera::fairscale {

/// A subtree of one archive.
struct Part {
  const Value* value = nullptr;
  std::uint32_t file = 0;
  Path path;  // where it stands in that file
  explicit operator bool() const { return value != nullptr; }
};

struct RankParts {
  Part metadata;
  Part weights;
  Part optimizer;     // this rank's own
  Part consolidated;  // the gathered one
  std::vector<Part> extras;
};

/// The metadata in `root`, at most three dicts deep; nullptr = none.
const Value* find_metadata(const Value& root);
/// True for a dict with `state` and `param_groups`.
bool is_optimizer(const Value& value);
bool is_consolidated(const Value& optimizer);

/// Adds what `root` holds to `parts`. `keys`: what names weights, sorted (weight_keys). A second
/// part of a kind is an extra.
void find_parts(const Value& root, std::uint32_t file, const std::vector<std::string>& keys,
                RankParts& parts);

/// Names by which a weights dict is recognised: backing parameters, both spellings of a flat one.
/// Sorted.
std::vector<std::string> weight_keys(const RankMetadata& metadata);
/// The same for a state dict that was not sharded: parameters and buffers.
std::vector<std::string> full_keys(const RankMetadata& metadata);

}  // namespace tessera::fairscale

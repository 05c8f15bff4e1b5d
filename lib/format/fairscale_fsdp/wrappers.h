#pragma once
// How parameters are grouped in wrappers, as data that travels with a Manifest: a result in the
// same format keeps its source's wrappers. Pure.
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/format/fairscale_fsdp/metadata.h"

namespace tessera::fairscale {

struct GroupedBacking {
  std::string name;
  bool flat = true;
  std::vector<std::string> parameters;  // inside the wrapper
};

struct GroupedWrapper {
  std::string path;
  bool no_broadcast = false;
  std::vector<GroupedBacking> backings;
  std::vector<std::pair<std::string, std::string>> shared;
};

/// World size, shapes and padding are left out: they are recomputed.
std::vector<GroupedWrapper> wrappers_of(const RankMetadata& metadata);

/// One line of JSON, and back. Text that is no such list: empty.
std::string encode_wrappers(const std::vector<GroupedWrapper>& wrappers);
std::vector<GroupedWrapper> decode_wrappers(std::string_view text);

}  // namespace tessera::fairscale

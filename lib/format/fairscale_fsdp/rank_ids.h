#pragma once
// Which backing parameter an id of a rank's own optimizer.state_dict() means: ids count through the
// groups, backing parameters are listed as model.parameters() lists them. Pure.
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lib/format/fairscale_fsdp/reader.h"

namespace tessera::fairscale {

/// One rank's optimizer.
struct RankOptimizer {
  std::uint32_t file = 0;
  const Value* value = nullptr;
  std::unordered_map<std::int64_t, const Value*> state;  // by id
};

/// In the groups' order; nullopt where the ids of `optimizer`, which rank number `rank` stored, fit
/// no parameters. A choice that shapes leave open is noted (CK017).
std::optional<std::vector<std::pair<std::int64_t, const BackingPlace*>>> parameters_by_id(
    Checkpoint& checkpoint, std::size_t rank, const RankOptimizer& optimizer);

}  // namespace tessera::fairscale

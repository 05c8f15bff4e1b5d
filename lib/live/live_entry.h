#pragma once
// One entry of another rank's live state, decoded from the description that the rank sent.
#include <functional>
#include <string>
#include <vector>

#include "lib/live/live_merge.h"
#include "lib/state/live/live_structure.h"

namespace tessera {

struct LiveEntry : StructureEntry {
  Bytes digest;      // kShared
  std::string text;  // kShared
  Bytes pickle;      // kPerRank
};

/// Calls `f` for one entry after the other: all ranks' at once would be large. Throws kCorrupt, and
/// what `f` throws; so do all.
void read_description(const LiveDescription& description,
                      const std::function<void(LiveEntry&& entry)>& f);
std::vector<Agreement> read_agreements(const LiveDescription& description);

}  // namespace tessera

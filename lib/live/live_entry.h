#pragma once
// One entry of another rank's live state, as its description tells it.
#include <functional>
#include <string>
#include <vector>

#include "lib/live/live_merge.h"

namespace tessera {

struct LiveEntry {
  enum class Kind : std::uint8_t { kTensor, kShared, kPerRank };
  Kind kind = Kind::kTensor;
  std::string name;
  Path path;
  TensorSpec spec;  // kTensor, as are the next four
  bool replicated = false;
  bool is_parameter = false;
  bool of_first_rank = false;  // buffers: ranks' may differ, and one rank's belong together
  std::vector<Chunk> chunks;   // as many as the rank has pieces, empty ones too
  Bytes digest;                // kShared
  std::string text;            // kShared
  Bytes pickle;                // kPerRank
};

/// Calls `f` for one entry after the other: all ranks' at once would be large. Throws kCorrupt, and
/// what `f` throws; so do all.
void read_description(const LiveDescription& description,
                      const std::function<void(LiveEntry&& entry)>& f);
std::vector<Agreement> read_agreements(const LiveDescription& description);

}  // namespace tessera

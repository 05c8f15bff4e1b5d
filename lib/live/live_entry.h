#pragma once
// One entry of another rank's live state, as its description tells it.
#include <string>
#include <vector>

#include "lib/live/live_merge.h"

namespace tessera {

struct LiveEntry {
  enum class Kind : std::uint8_t { kTensor, kShared, kPerRank };
  Kind kind = Kind::kTensor;
  std::string name;
  Path path;
  TensorSpec spec;  // kTensor, as are the next three
  bool replicated = false;
  bool is_parameter = false;
  std::vector<Chunk> chunks;  // as many as the rank has pieces, empty ones too
  Bytes digest;               // kShared
  std::string text;           // kShared
  Bytes pickle;               // kPerRank
};

/// Throw kCorrupt.
std::vector<LiveEntry> read_description(const LiveDescription& description);
std::vector<Agreement> read_agreements(const LiveDescription& description);

}  // namespace tessera

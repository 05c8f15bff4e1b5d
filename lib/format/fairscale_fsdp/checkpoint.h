#pragma once
// A FairScale checkpoint, opened: what each rank's files hold, and one description of the wrappers
// that all ranks agree on. No tensor byte has been read.
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lib/format/fairscale_fsdp/parts.h"
#include "lib/format/fairscale_fsdp/select.h"
#include "lib/format/fairscale_fsdp/shards.h"
#include "lib/format/findings.h"
#include "lib/format/torch_files/archive_bytes.h"

namespace tessera::fairscale {

/// An entry of a rank's weights dict.
struct WeightEntry {
  std::string key;  // without wrapper segments
  const Value* value = nullptr;
};

struct RankState {
  std::vector<std::string> files;
  RankParts parts;
  /// Padding of each backing parameter, by wrapper; empty without metadata.
  std::vector<std::vector<std::int64_t>> padding;
  std::vector<WeightEntry> weights;  // as stored
  std::map<std::string, std::size_t> by_key;

  const Value* find(const std::string& key) const;
};

/// A backing parameter over all ranks.
struct BackingPlace {
  std::size_t wrapper = 0;
  std::size_t index = 0;  // in its wrapper
  std::string key;        // "<path>.<name>"
  ShardPlan plan;
  std::vector<std::optional<TensorRef>> tensors;  // by rank
  /// Parameters stored under their own names, whole: a full state dict.
  bool unwrapped = false;
};

/// State of a wrapper whose ranks do not share it (no_broadcast_optim_state): what one rank holds
/// and the first does not. Tensors are embedded ones of the manifest.
struct OwnState {
  ValueDict weights;    // backing parameter -> tensor
  ValueDict optimizer;  // backing parameter -> its state
};

struct Checkpoint {
  Checkpoint(const Directory& from, const ReadOptions& options)
      : directory(&from),
        builder(from, options),
        bytes(from, builder),
        findings(options.tolerate_damage, builder.manifest().notes) {}

  const Wrapper& wrapper(const BackingPlace& place) const {
    return description->wrappers[place.wrapper];
  }
  const Backing& backing(const BackingPlace& place) const {
    return wrapper(place).backings[place.index];
  }
  const std::string& path_of(std::uint32_t file) { return builder.manifest().files.at(file).path; }

  const Directory* directory = nullptr;
  ArchiveManifestBuilder builder;
  ArchiveBytes bytes;
  Findings findings;
  ChosenFiles chosen;
  std::vector<RankState> ranks;
  std::optional<RankMetadata> description;  // of the first rank that has one; padding is its own
  std::uint32_t description_file = 0;       // where it stands
  std::size_t first_rank = 0;               // the first rank with weights
  Part consolidated;                        // the gathered optimizer, wherever it stands
  std::vector<BackingPlace> places;         // metadata order
  std::map<std::size_t, OwnState> own;      // by rank
};

/// Opens every file, finds the parts, checks that ranks agree and arranges the shards. Damage goes
/// to the findings (thrown unless tolerated).
void open_ranks(Checkpoint& checkpoint);

}  // namespace tessera::fairscale

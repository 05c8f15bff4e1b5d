#pragma once
// A save planned: what this rank writes, to the byte, and what all ranks write together. Kept from
// one save to the next, since a training job saves the same tensors again and again:
//
//   same structure on every rank, values of the same sizes   -> the plan is used again; one small
//                                                               all-gather says so
//   anything else                                            -> descriptions are gathered anew
#include <tessera/base/rank_group.h>
#include <tessera/ops/save.h>
#include <tessera/reshard/plan.h>
#include <tessera/storage/aligned_buffer.h>

#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lib/ops/live_merge.h"

namespace tessera {

/// A file of the checkpoint and the rank that writes it.
struct RankFile {
  std::string path;
  std::uint64_t size_bytes = 0;
  int rank = 0;
};

struct PreparedSave {
  std::string format;
  Bytes structure;  // of this rank's state
  MergedState merged;
  OutputPlan output;            // the files of this rank
  std::optional<Plan> plan;     // of them
  std::vector<RankFile> files;  // of all ranks
  std::uint64_t total_bytes = 0;
};

/// A save that goes on in the background.
struct PendingSave::Work {
  std::shared_future<SaveReport> result;
  bool told = false;  // its error was thrown to somebody; guarded by being one thread's
};

/// What save() keeps with a group of ranks.
struct SaveMemory {
  std::unique_ptr<PreparedSave> prepared;
  std::uint64_t generation = 0;  // counts plans; the same on every rank
  AlignedBuffer snapshot;
  std::unique_ptr<RankGroup>
      background;  // for the thread that writes; made by the first async save
  std::shared_ptr<PendingSave::Work> in_flight;

  ~SaveMemory();
  /// The memory of `ranks`, made when first asked for.
  static SaveMemory& of(RankGroup& ranks);
  /// Waits for the save in flight. Its error, unless it was told before.
  Status settle();
};

/// Makes memory.prepared right for `state`, its sources bound to the state's memory. Collective;
/// `mine`: what went wrong on this rank so far, thrown on every rank.
void prepare_save(const std::string& path, const LiveState& state, RankGroup& ranks,
                  const SaveOptions& options, const Status& mine, SaveMemory& memory,
                  SaveReport& report);

/// Copies this rank's pieces to memory.snapshot and points the sources there.
void take_snapshot(const LiveState& state, SaveMemory& memory);

/// Writes, agrees, publishes. Collective on `ranks`.
void write_save(const std::string& path, RankGroup& ranks, const SaveOptions& options,
                FileSystem& fs, const PreparedSave& prepared, SaveReport& report);

}  // namespace tessera

#pragma once
// A save planned: what this rank writes, to the byte, and what all ranks write together. Kept from
// one save to the next, since a training job saves the same tensors again and again:
//
//   same structure on every rank, values of the same sizes   -> the plan is used again; one small
//                                                               all-gather says so
//   anything else                                            -> descriptions are gathered anew
#include <tessera/base/rank_group.h>
#include <tessera/live/save.h>
#include <tessera/reshard/plan.h>
#include <tessera/state/balance.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/live/live_merge.h"
#include "lib/live/snapshot.h"

namespace tessera {

/// A file of the checkpoint and the rank that writes it.
struct RankFile {
  std::string path;
  std::uint64_t size_bytes = 0;
  int rank = 0;
};

struct PreparedSave {
  std::string format;
  Bytes structure;             // of the description of this rank's state
  Sha256Digest fingerprint{};  // of the structure
  MergedState merged;
  OutputPlan output;            // the files of this rank
  std::optional<Plan> plan;     // of them
  std::vector<RankFile> files;  // of all ranks
  std::uint64_t total_bytes = 0;
  Balance balance;  // of the state of all ranks
};

/// A save that goes on in the background.
struct PendingSave::Work {
  std::shared_future<SaveReport> result;
  const int process = ::getpid();
  bool is_of_this_process() const { return process == ::getpid(); }  // not of one that forked it
  std::atomic<bool> thrown = false;                                  // a call threw its error

  /// The training thread: the copy is there when it returns. Until this call the memory may not
  /// change; whether it did is found out here and in check_unchanged().
  void finish_snapshot();
  /// The thread that copies.
  void copied();
  /// Throws kInvalidArgument, naming the tensor, where memory changed too early.
  void check_unchanged();

  std::function<std::string()> changed;  // of the state; empty: the copy was made before the return

 private:
  void ask();  // under the mutex

  std::mutex mutex_;
  std::condition_variable condition_;
  bool copied_ = false;
  bool released_ = false;  // finish_snapshot() was called
  std::string too_early_;  // a tensor
};

/// What save() keeps with a group of ranks.
struct SaveMemory {
  std::unique_ptr<PreparedSave> prepared;
  std::uint64_t generation = 0;  // counts plans; the same on every rank
  Snapshot snapshot;
  std::unique_ptr<RankGroup>
      background;  // for the thread that writes; made by the first async save
  std::shared_ptr<PendingSave::Work> in_flight;
  int known_cpus = 0;         // 0: not asked
  std::exception_ptr thrown;  // by a callback of this rank, in this call; no Error

  /// Waits; an error that nobody has asked for goes to stderr, as it has nowhere else to go.
  ~SaveMemory();
  /// The memory of `ranks`, made when first asked for.
  static SaveMemory& of(RankGroup& ranks);
  /// Before another call with `ranks`: waits for a save in flight, and throws its untold error.
  static void settle_of(RankGroup& ranks);
  /// That this process may use; asked once, as the answer is in files.
  int cpus();
  /// Waits for the save in flight. Its error, unless it was thrown before.
  Status settle();
};

/// Prints a background save's error to stderr when no later call can rethrow it.
void print_unthrown(const Status& status);

/// Makes memory.prepared right for `state`, its sources bound to the state's memory. Collective;
/// `call`: "save" or "save_async"; `mine`: what went wrong on this rank so far, thrown on every
/// rank.
void prepare_save(std::string_view call, const std::string& path, const LiveState& state,
                  RankGroup& ranks, const SaveOptions& options, const Status& mine,
                  SaveMemory& memory, SaveReport& report);

/// Writes, agrees, publishes. Collective on `ranks`. `before_publish` is asked on every rank when
/// all have written; what it throws on one, all throw.
void write_save(const std::string& path, RankGroup& ranks, const SaveOptions& options,
                FileSystem& fs, const PreparedSave& prepared, SaveReport& report,
                const std::function<void()>& before_publish = {});

}  // namespace tessera

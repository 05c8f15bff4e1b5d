#pragma once
// save: the state of a training job, on any number of ranks, to one checkpoint.
//
//   pieces of every rank --gather (names, boxes, sizes: no tensor data)-->
//     one plan, proved to cover every tensor --> each rank writes its own files --> all agree -->
//     one publish
//
// Collective: all ranks call with the same path and options. Nothing is visible at `path` until all
// of it is (storage/stage.h); an error on any rank publishes nothing, and every rank throws it,
// naming the rank. What goes wrong after the commit (the pointer, retention, a rank that dies in
// the last meeting) is thrown too: the checkpoint is there then. Tensors held by several ranks are
// written once, balanced by bytes. All ranks must see the same file system.
//
// Errors: kInvalidArgument (holes, overlaps, pieces out of bounds, ranks that disagree: naming
// tensor and rank, what was expected and what was found), kAlreadyExists (path is there and not
// `force`), kUnsupported, kResourceExhausted, kIo, kTimeout (a rank is gone), kCancelled.
#include <tessera/base/progress.h>
#include <tessera/base/rank_group.h>
#include <tessera/state/balance.h>
#include <tessera/state/live_state.h>
#include <tessera/storage/file_system.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace tessera {

/// When save_async() copies the state.
enum class SnapshotTiming : std::uint8_t {
  kBeforeReturn,
  /// While training goes on, by a thread: PendingSave::finish_snapshot() before the memory changes.
  kLazy,
};

/// The first four are the same on all ranks (kInvalidArgument, naming the option and two ranks).
struct SaveOptions {
  std::string format = "torch-dcp";  // the one that ranks can write together
  bool force = false;                // replace what is at `path`
  /// Once published, `latest` beside `path` names it, as readers of PATH expect.
  bool update_latest = false;
  /// Number of checkpoints to keep, this one included; 0 keeps all. Counts the folders next to
  /// `path` that have our manifest and the same name with another number (step_90 for step_100),
  /// and removes the oldest. Never removes what `latest` names, nor larger numbers, which are left
  /// of a run that was rolled back.
  std::uint32_t keep_last = 0;
  std::uint64_t memory_limit_bytes = std::uint64_t{64} << 20;  // staged per rank, all threads
  int threads = 1;                                             // of each rank
  SnapshotTiming snapshot = SnapshotTiming::kBeforeReturn;     // of save_async
  /// Threads that copy the state before save_async() returns, capped at the CPU count: one thread
  /// alone does not use the full memory bandwidth. A lazy snapshot is copied by one thread.
  int snapshot_threads = 2;
  FileSystem* file_system = nullptr;  // null: the real one
  Progress* progress = nullptr;
  const CancelToken* cancel = nullptr;
};

struct SaveReport {
  std::uint64_t bytes_written = 0;  // by this rank
  std::uint64_t total_bytes = 0;    // of the checkpoint
  Balance balance;                  // the state of all ranks = what was written (state/balance.h)
  bool plan_reused = false;         // the plan of the save before was still right
  std::uint64_t plan_bytes = 0;     // that this rank sent to the others for planning
  double plan_seconds = 0;          // with waiting for ranks that come later
  double seconds = 0;
  std::vector<std::string> removed;          // checkpoints that `keep_last` took away (rank 0)
  std::vector<std::string> failed_removals;  // "step_3: why", of those that it could not (rank 0)
};

SaveReport save(const std::string& path, const LiveState& state, RankGroup& ranks,
                const SaveOptions& options = {});

/// A save whose files are still being written. Its destructor does not wait: the group of ranks
/// does, before its next call and at its end.
class PendingSave {
 public:
  PendingSave() = default;
  bool done() const;  // published or failed
  /// Returns once this rank's state has been copied: its memory may change from now on. Not
  /// collective. With a lazy snapshot it stands before whatever changes the memory (in training,
  /// before optimizer.step()); a state that changed earlier is refused and not published. Never
  /// throws what went wrong in the save: wait() or the next call throws it.
  void finish_snapshot() noexcept;
  /// Blocks until it is. Throws what went wrong, on every rank.
  SaveReport wait();

  struct Work;  // the library's own
  explicit PendingSave(std::shared_ptr<Work> work);

 private:
  std::shared_ptr<Work> work_;
};

/// As save(), but returns once the state has been copied: what happens to the memory afterwards
/// does not reach the checkpoint. Copies go to buffers that `ranks` keeps and the next call reuses.
/// With SnapshotTiming::kLazy it returns at once and the copy is made meanwhile; the memory must
/// live and stay as it is until finish_snapshot(), and state.changed must be set: a program that
/// forgets to call it gets kInvalidArgument, naming a tensor, on every rank. One save is in flight
/// per group: another call, and the destruction of the group, wait for it first. An error of one
/// whose wait() nobody called is thrown by the next save or load on the same group, on every rank;
/// where none comes, it goes to stderr as the group ends. exit() waits, too. `options.file_system`,
/// `progress` and `cancel` must live until it is done. Groups that cannot work in the background
/// (RankGroup::duplicate) throw kUnsupported.
PendingSave save_async(const std::string& path, const LiveState& state, RankGroup& ranks,
                       const SaveOptions& options = {});

}  // namespace tessera

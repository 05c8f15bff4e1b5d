#pragma once
// SimulatedDisk: a disk that forgets, for proving that a crash at any point leaves the old state or
// the new one.
//
// Work runs on it as on any file system. In addition to the live state it keeps what is durable and
// what is pending:
//
//   a file's write   one pending unit per 4 KiB page, and one for the size; WriteFile::sync makes
//                    them durable
//   a name           create, rename, exchange, remove: one pending unit per folder touched (atomic
//                    within a folder, not across); sync_directory of that folder makes them
//                    durable, in order
//
// A crash after any operation leaves the durable state plus some of the pending units.
// for_each_crash_state() visits, for every prefix of the operations done: nothing pending,
// everything, each single unit lost, only names (renames before data), only names and sizes (zeros
// for data), the last write torn at several 512-byte borders, and all subsets where they are few,
// else random ones, for as long as they go on finding new states. Not modelled:
// links; locks are files. A unit lost is never older than the last sync, but units may reach the
// disk in any order. Thread-safety: as MemoryFileSystem while work runs; visiting afterwards, from
// one thread.
#include <tessera/storage/memory_file_system.h>
#include <tessera/storage/observed_file_system.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace tessera {

struct CrashOptions {
  int random_subsets = 32;    // per prefix, at most
  std::uint64_t seed = 1;     // the same seed visits the same states
  bool distinct_only = true;  // states whose tree was visited before are skipped
  /// Operation counts after which another set of states is allowed (commits): the same tree before
  /// and after such a count is two states.
  std::vector<std::size_t> marks;
  std::size_t first_prefix = 0;  // operations before this one are not cut short
};

struct CrashState {
  std::size_t prefix;       // operations that had returned before the crash
  std::string description;  // "after 17 operations (sync /out/x), 3 of 5 pending units"
};

struct CrashCounts {
  std::uint64_t generated = 0;
  std::uint64_t distinct = 0;
};

class SimulatedDisk final : public ObservedFileSystem {
 public:
  /// `live` holds the running state; what it holds now is durable. Borrowed.
  explicit SimulatedDisk(MemoryFileSystem& live);
  ~SimulatedDisk() override;

  /// Operations that changed or synced something so far: a mark to compare CrashState::prefix with.
  std::size_t operations() const;

  /// Calls `visit` with a fresh file system for each crash state. It may be changed freely
  /// (recovery runs on it).
  CrashCounts for_each_crash_state(const CrashOptions& options,
                                   const std::function<void(MemoryFileSystem& after_crash,
                                                            const CrashState& state)>& visit) const;

 protected:
  void after(const IoEvent& event) const override;

 private:
  struct Recorder;
  std::unique_ptr<Recorder> recorder_;
};

}  // namespace tessera

#pragma once
// load: a checkpoint of any format and any number of ranks into live memory, in place.
//
//   open, plan, locate on every rank -> all agree
//     -> each rank reads only what its pieces need -> all agree
//     -> values to the state's callbacks
//
// Collective: all ranks call with the same policy, and see the same checkpoint, wherever each one's
// copy lies. Strict by default: what is missing, of another shape, or unexpected in a part (model,
// optimizer, other) that the state has is an error, listing names. Before the first byte lands,
// every rank has planned, and coverage of every tensor is proved. Damage may still show in the last
// byte that is read: LoadSafety says what an error leaves then. A save of the same ranks that is in
// flight is waited for first (save.h).
//
// Stored floating types are cast to the live ones and listed. Optimizers stored by parameter number
// or by leaf are found by FQN.
#include <tessera/base/progress.h>
#include <tessera/base/rank_group.h>
#include <tessera/ops/rename.h>
#include <tessera/state/live_state.h>
#include <tessera/storage/file_system.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

enum class PartPolicy : std::uint8_t {
  kStrict,
  kAllowMissing,     // what is not stored stays as it is
  kAllowUnexpected,  // what is stored and not asked for is left out
  kAllowBoth,
  kSkip,  // nothing of this part is loaded
};

/// How the job's memory is protected against an error on any rank, and what that costs.
enum class LoadSafety : std::uint8_t {
  /// All is read aside and copied once every rank has everything: an error leaves all memory as it
  /// was, whatever it is. Costs as much memory as this rank's part of the state, and a copy.
  kAside,
  /// All is read and its checksums proved, nothing is kept; once every rank is done, it is read
  /// again, in place. Damage, missing files and refusals leave all memory as it was; what can still
  /// go wrong is storage that fails at bytes it has just given, or a rank that dies in between, and
  /// the error then says that the state is partly filled. Costs a second read.
  kReadTwice,
  /// Straight to its place: an error while reading says that the state is partly filled and must
  /// not be used. Costs nothing.
  kInPlace,
};

struct LoadPolicy {
  PartPolicy model = PartPolicy::kStrict;
  PartPolicy optimizer = PartPolicy::kStrict;
  PartPolicy other = PartPolicy::kStrict;
  bool allow_mismatched = false;  // tensors of another shape or kind of type stay as they are
  bool allow_cast = true;         // among real floating types, and of single numbers; without it
                                  // they are mismatched
  std::string from;               // format id; "": detected by content
  std::string root;               // take this subtree of the checkpoint as the whole
  NameRules names;                // of the checkpoint, before they are matched
  /// Fills all memory that it reads into with a pattern first, and proves that no element was left
  /// with it; compares what was read aside with what landed; checks everything that has a checksum,
  /// even with check_crc = false, and every file of ours, by one rank each. Live tensors that share
  /// memory, whole or in part, are refused before anything lands (kInvalidArgument): only one of
  /// them could hold what is stored.
  bool verify = false;
  bool check_crc = true;
  LoadSafety safety = LoadSafety::kAside;
  /// Staging limit per rank, in bytes. If any rank would exceed it, kAside falls back to
  /// kReadTwice. The default equals that of memory_limit_bytes, so that a load needs little memory
  /// for a state of any size.
  std::uint64_t stage_limit_bytes = std::uint64_t{64} << 20;
  std::uint64_t memory_limit_bytes = std::uint64_t{64} << 20;  // buffers of reading, per rank
  int threads = 1;                                             // of each rank
  FileSystem* file_system = nullptr;                           // null: the real one
  Progress* progress = nullptr;
  /// Polled until the first byte lands (with kInPlace, which reads directly to its place, until the
  /// end).
  const CancelToken* cancel = nullptr;
};

/// A tensor whose stored form is not the live one.
struct LoadDifference {
  std::string name;
  std::string expected;  // "float32 [4,5]", of the live state
  std::string found;     // as stored
};

/// What load did with this rank's state. Names in the order of the state; `unexpected` in that of
/// the checkpoint, against what all ranks ask for together.
struct LoadResult {
  std::vector<std::string> loaded;
  std::vector<std::string> missing;     // asked for, not stored
  std::vector<std::string> unexpected;  // stored, not asked for
  std::vector<std::string> skipped;     // of parts that the policy skips
  std::vector<LoadDifference> mismatched;
  std::vector<LoadDifference> cast;
  std::vector<StateEntry> values;  // what on_value was given
  std::vector<Note> notes;         // of opening and reading
  std::string format;
  std::string path;  // what was opened
  std::uint64_t bytes_read = 0;
  LoadSafety safety = LoadSafety::kAside;  // as it was read
  double seconds = 0;
};

LoadResult load(const std::string& path, LiveState state, RankGroup& ranks,
                const LoadPolicy& policy = {});

}  // namespace tessera

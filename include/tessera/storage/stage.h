#pragma once
// Stage: the commit protocol. Nothing is visible under the final name until it is whole.
//
//   parent/.<name>.tmp-<hash>/       files made O_EXCL, journal of finished pieces
//   parent/.<name>.tmp-<hash>.lock   the lease lock, held from open() to the end
//   -> every file fsynced -> prove() -> seal written, fsynced -> journal removed (resumable:
//      put beside the stage, parent/.<name>.tmp-<hash>.jrnl) -> folders fsynced
//   -> rename to parent/<name> (NOREPLACE; --force: EXCHANGE, or trash-then-rename)
//   -> parent fsynced = the commit point
//   -> journal and old content removed
//
// <hash> is the start of the plan hash (the journal holds all of it). A crash before the commit
// point leaves the old state and a stage; after it the new state. The next run that publishes to
// the same name removes our stages and trash that no process holds locked (kept ones too, but the
// one being resumed; a resume that finds none of its own removes nothing), and undoes a
// trash-then-rename that stopped half way. One stage per final name and plan hash: a second holder
// is refused (kAlreadyExists). Runs of different requests may stage beside each other and publish
// one after the other (parent/.<name>.tmp-0.lock). On file systems without locks a stage that
// exists is refused, and nothing is ever removed for being stale. When the parent's fsync fails,
// the renames are undone and the error thrown: the old output shows (where EXCHANGE is unsupported
// the new one does, whole, and the next open removes the old one).
//
// A one-file result is staged as `.<name>.tmp-<hash>/<name>` and renamed out, its seal beside it
// (`<name>.tessera.json`) published before the file. Where it replaces a file, the old seal goes
// first, then the file is replaced (its commit point), then the new seal comes: a crash or an error
// in between leaves a whole file without a seal, never one beside the seal of another.
// Thread-safety: create(), journal() and flush_journal() may be called from several threads; the
// rest from one, after them.
#include <tessera/base/bytes.h>
#include <tessera/storage/file_system.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

inline constexpr std::string_view kSealName = "tessera.manifest.json";  // in a folder result
inline constexpr std::string_view kSealSuffix = ".tessera.json";        // beside a one-file result

struct StageOptions {
  bool force = false;  // replace what is there
  /// Continue a kept stage of the same request (absent: kNotFound). A stage with another plan or
  /// binding is removed, and the run starts again.
  bool resume = false;
  bool single_file = false;  // final_path names a file
  bool resumable = false;    // what a killed run leaves is worth resuming up to the last rename
  /// What the journal keeps beside the plan hash: which source was read.
  Bytes binding = {};
  /// When resuming: whether the binding that the journal kept still holds. Unset: it does.
  std::function<bool(ByteView kept)> still_bound = {};
  int wait_ms = 30'000;  // for the end of another run's publication to the same name
};

/// A finished piece, as the journal remembers it: `length` bytes at `offset` of file number `file`
/// have this CRC.
struct JournalEntry {
  std::uint32_t file = 0;
  std::uint32_t crc32 = 0;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
};

class Stage {
 public:
  /// `plan_hash`: hex; identifies source, request and output plan. Throws kAlreadyExists when
  /// final_path exists without `force`, or when another holder stages the same.
  static std::unique_ptr<Stage> open(FileSystem& fs, const std::string& final_path,
                                     const std::string& plan_hash, const StageOptions& options);
  /// Throws what open() would for what is at `final_path`; touches nothing.
  static void check(const FileSystem& fs, const std::string& final_path,
                    const StageOptions& options);
  virtual ~Stage() = default;  // neither published nor kept: the stage is removed

  virtual const std::string& directory() const = 0;  // where files are being written
  virtual const std::string& final_path() const = 0;
  /// Entries of an interrupted run (resume only), in order; torn tails dropped. They are claims:
  /// after a power cut the journal may have reached the disk and the piece not, so a caller that
  /// relies on one must read the piece back and compare its CRC.
  virtual const std::vector<JournalEntry>& finished() const = 0;
  /// When resuming: what was left belonged to another plan or source, and was removed.
  virtual bool started_anew() const { return false; }

  /// Creates (or, resuming, reopens) `relative` below the stage; folders on the way are made. "" in
  /// single-file mode. Each file must be synced and closed before publish(). Resuming, what is
  /// not opened again goes: it is none of this output.
  virtual std::unique_ptr<WriteFile> create(const std::string& relative, IoMode mode) = 0;
  /// Remembers that a piece reached the file. Thread-safe; buffered, written in batches.
  virtual void journal(const JournalEntry& entry) = 0;
  virtual void flush_journal() = 0;

  /// Everything after the last file is closed and synced: prove() (throws to stop), seal, syncs,
  /// rename, parent sync. `seal` makes the bytes of the seal file after prove()
  /// passed; none, or no bytes: no seal.
  virtual void publish(const std::function<void()>& prove, const std::function<Bytes()>& seal) = 0;
  /// Leave the stage for a later --resume (SIGINT, or an error of a run that resumed); releases the
  /// lock. False where there is nothing to leave: it is published, or its publication failed after
  /// names were changed.
  virtual bool keep() = 0;
  /// Remove the stage now. The old output is untouched.
  virtual void discard() = 0;
};

}  // namespace tessera

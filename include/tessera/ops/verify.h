#pragma once
// verify: checks whether a checkpoint is whole. Damage is a finding with a stable code
// (docs/verify-codes.md), never an exception; only metadata that cannot be parsed throws.
//
//   quick   metadata and file sizes: coverage of every tensor, bounds, missing or extra files
//   full    and every byte is read: record CRCs, the inside of every archive, our seal's CRC per
//           MiB; copies of a chunk are compared by the CRCs of their records, else by their bytes
//   deep    and every copy is read, whatever CRCs say
#include <tessera/base/error.h>
#include <tessera/ops/open.h>
#include <tessera/reshard/tensor_reader.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

enum class VerifyLevel : std::uint8_t { kQuick, kFull, kDeep };

struct VerifyOptions {
  VerifyLevel level = VerifyLevel::kFull;
  bool require_sums = false;  // no checksum for some tensor bytes: an error
  std::string against;        // file with a hash report or our manifest; "" = none
  /// Also check what lies next to the checkpoint (Beside).
  bool checks_beside = true;
  OpenOptions open;  // tolerate_damage is set by verify itself
  TransferOptions transfer;
};

/// Findings with one cause: a short file damages many tensors. If there is only one finding, its
/// own message.
struct DamageCause {
  Finding code = Finding::kNone;
  Severity severity = Severity::kInfo;
  std::string message;  // "__3_0.distcp is 40.9 MiB short"
  std::string file;
  std::vector<std::string> tensors;  // and values; each once, as found
  std::size_t findings = 0;
};

/// What lies next to the checkpoint, checked by itself.
struct VerifiedBeside {
  Beside beside;
  bool opened = false;  // and looked into, as a checkpoint of its own
  bool ok = true;       // nothing in it is damaged, as far as it was looked into
  std::uint64_t tensors = 0;
  std::string why;  // where it was not opened: why
};

struct VerifyReport {
  std::string path;
  std::string format;
  VerifyLevel level = VerifyLevel::kFull;
  bool ok = true;  // no finding of Severity::kError
  std::vector<Note> findings;
  std::vector<DamageCause> causes;  // of the findings, each in one of them; in their order
  std::uint64_t files = 0;
  std::uint64_t tensors = 0;
  std::uint64_t chunks = 0;
  std::uint64_t bytes_read = 0;
  std::uint64_t bytes_with_sums = 0;  // covered by a record CRC or the seal
  std::uint64_t tensor_bytes_stored = 0;
  /// --against: values that hold what could not be followed, and so was not compared.
  std::uint64_t not_compared = 0;
  bool sealed = false;  // our manifest is there and fits
  /// Files in the checkpoint's folder, at any depth, that are no part of it and were not looked
  /// into. Of a PATH that is a file: 0.
  std::uint64_t other_files = 0;
  std::vector<Note> notes;
  std::vector<VerifiedBeside> beside;
};

VerifyReport verify_checkpoint(FileSystem& fs, const std::string& path,
                               const VerifyOptions& options);

/// The same, quick, of a checkpoint that is open: its metadata is read once. `options.open` says
/// nothing here; for damage to be findings it was opened with ReadOptions::tolerate_damage.
VerifyReport verify_opened(FileSystem& fs, OpenedCheckpoint& checkpoint,
                           const VerifyOptions& options);

/// The same for one PATH of several: what cannot be opened at all is a finding (CK001), and
/// `failure` says what verify_checkpoint() would have thrown. Only a request to stop and a bug of
/// ours are thrown.
VerifyReport verify_or_report(FileSystem& fs, const std::string& path, const VerifyOptions& options,
                              std::optional<Status>& failure);

}  // namespace tessera

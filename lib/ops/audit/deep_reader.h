#pragma once
// Numbers of all checkpoints of a run, one after the other: how much of each is read, and what the
// cache has of it.
//
// DIR/<key>.json, key = SHA-256 of the content's identity and of how it was read. A file that is no
// such document, or of another key, counts as absent and is written anew.
#include <cstdint>
#include <optional>
#include <string>

#include "lib/ops/audit/deep_scan.h"
#include "lib/ops/audit/run.h"

namespace tessera {

class DeepReader {
 public:
  /// Chooses how much to read. `most_elements`: kept of each tensor.
  DeepReader(FileSystem& fs, AuditRun& run, const AuditOptions& options, DeepPlan plan);

  /// nullopt: it cannot be read; the row and the findings say why.
  std::optional<DeepNumbers> read(std::size_t checkpoint);

  const AuditSampling& sampling() const { return sampling_; }
  /// "" or ", in the 1/8 of it that was read".
  std::string share_text() const;

 private:
  std::uint64_t bytes_of(const AuditPart& part, std::uint64_t every) const;
  std::string cache_path(const AuditPart& part) const;
  std::optional<DeepNumbers> load(const AuditPart& part) const;
  void store(const AuditPart& part, const DeepNumbers& numbers);
  DeepNumbers read_part(const AuditPart& part, AuditedCheckpoint& row);

  FileSystem& fs_;
  AuditRun& run_;
  const AuditOptions& options_;
  DeepPlan plan_;
  AuditSampling sampling_;
  bool says_cache_trouble_ = false;
};

/// The cache's document.
std::string encode_deep_numbers(const std::string& key, const DeepNumbers& numbers,
                                const AuditNames& names);
/// nullopt: it is none, or of another key.
std::optional<DeepNumbers> decode_deep_numbers(ByteView text, const std::string& key,
                                               AuditNames& names);

}  // namespace tessera

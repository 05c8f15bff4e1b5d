#pragma once
// The parts of the torchsnapshot reader.
//
//   .snapshot_metadata --parse--> entries of every rank --merge--> one tree --flatten--> Manifest
//
// A snapshot keeps one tree per rank. What ranks share (replicated entries, shards of one tensor)
// is one; what each rank holds for itself is one where they hold the same, else the ranks' own go
// below `rank_R`:
//
//   model.w          equal on all ranks: one tensor, a copy per rank
//   rank_1.rng.state rank 1's, which differs from rank 0's
#include <tessera/encoding/torch_archive.h>
#include <tessera/format/format_driver.h>

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lib/format/findings.h"
#include "lib/format/torchsnapshot/metadata.h"

namespace tessera::snapshot {

Manifest read_manifest(const Place& place, const ReadOptions& options);

/// The files a snapshot names, each looked up once.
class SnapshotFiles {
 public:
  SnapshotFiles(const Directory& directory, Manifest& manifest, Findings& findings)
      : directory_(directory), manifest_(manifest), findings_(findings) {}

  /// Index in Manifest::files; a missing one is a finding and has no bytes.
  std::uint32_t number(const std::string& location);
  bool is_missing(std::uint32_t file) const { return missing_[file]; }
  const Directory& directory() const { return directory_; }

 private:
  const Directory& directory_;
  Manifest& manifest_;
  Findings& findings_;
  std::map<std::string, std::uint32_t> numbers_;
  std::vector<bool> missing_;
};

/// Makes tensors and values of entries. Several entries are copies of one leaf.
class LeafMaker {
 public:
  LeafMaker(const Directory& directory, const ReadOptions& options, Manifest& manifest,
            Findings& findings)
      : options_(options),
        manifest_(manifest),
        findings_(findings),
        files_(directory, manifest, findings) {}

  /// One tensor of the parts of all `entries` (kTensor: copies; kSharded: shards). nullopt when
  /// nothing of it is there (a finding says so).
  std::optional<Value> tensor(const std::vector<const Entry*>& entries);
  /// Value of an object's file; nullopt when it is missing or damaged (a finding says so).
  std::optional<Value> object(const Entry& entry);
  /// True when the leaves hold the same, as far as a look at them shows: primitives and objects
  /// whole, tensors up to kWholeBytes whole, larger ones at their ends and middle.
  bool same(const Entry& a, const Entry& b);

 private:
  struct Run {  // bytes of a file
    std::uint32_t file = 0;
    std::uint64_t offset = 0;
    std::uint64_t length = 0;
  };
  Run run_of(const StoredPart& part);
  bool is_there(const Run& run) const;
  bool same_bytes(const Run& a, const Run& b);
  void add_chunk(const TensorPart& part, StoredTensor& stored);
  Source archive_source(const TensorPart& part, std::uint32_t file, StoredTensor& stored);
  TorchArchive open(std::uint32_t file);
  std::uint32_t embed(const TorchArchive& archive, std::uint32_t index, std::uint32_t file);

  const ReadOptions& options_;
  Manifest& manifest_;
  Findings& findings_;
  SnapshotFiles files_;
};

/// One tree out of all ranks'.
struct MergedRanks {
  Value tree;
  std::map<std::string, std::int64_t> own;  // the keys at the top below which a rank's own stand
};
/// The one tree of all ranks' entries; tensors are made through `leaves`.
MergedRanks merge_ranks(const Metadata& metadata, LeafMaker& leaves, Findings& findings);

}  // namespace tessera::snapshot

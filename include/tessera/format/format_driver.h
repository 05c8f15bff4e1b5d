#pragma once
// FormatDriver: one checkpoint format. Stateless; all of them stand in one explicit table
// (registry.h).
//
//   probe -> manifest -> (locate) : reading, headers and metadata only until locate
//   output_plan                   : writing, no I/O at all
#include <tessera/layout/layout.h>
#include <tessera/state/manifest.h>
#include <tessera/state/output_plan.h>
#include <tessera/storage/file_system.h>
#include <tessera/tensor/packed_chunks.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// Where a checkpoint may lie: a folder and, if the checkpoint is one file, that file's name in it.
struct Place {
  const Directory* directory = nullptr;
  std::string file;     // "" : the folder itself is the checkpoint
  std::string display;  // path as the user knows it, for messages
};

struct ProbeResult {
  enum class Answer : std::uint8_t {
    kNo,
    kMaybe,  // looks like it but damaged or incomplete: e.g. .distcp files without .metadata
    kYes,
  };
  Answer answer = Answer::kNo;
  std::string reason;  // "has .metadata and 4 .distcp files"
};

struct ReadOptions {
  std::uint64_t memory_limit_bytes = std::uint64_t{1} << 30;
  bool check_crc = true;
  int threads = 1;
  /// --mem-limit, where it was given: the values of a pickle may take as much, where their bound by
  /// its size (32 MiB and 64 bytes for each byte) is less.
  std::uint64_t pickle_limit_bytes = 0;
  /// Verbs that report damage (summary, verify) set this: a missing or short data file becomes a
  /// Note of Severity::kError instead of an exception. Metadata that cannot be parsed always
  /// throws.
  bool tolerate_damage = false;
  /// With it, a file that the system will not read (EIO, no permission) is damage too. Verbs that
  /// only look clear this: that they could not look is no verdict on the checkpoint.
  bool tolerate_io_errors = true;
  /// Only to list pickle globals (summary --globals): denied ones are listed in Manifest::globals
  /// instead of refused, and a root that is no state dict is an opaque value. Still nothing is
  /// called. Never set by a verb that reads tensors.
  bool list_globals = false;
  /// --flat-layout: the text of a record of what FSDP1's flat parameters hold; "" = none. Its form:
  /// docs/formats/torch-rank-files.md.
  std::string flat_layout;
  /// --assume-plain: Megatron's rank files: where tensor-parallel ranks hold different parts of a
  /// tensor whose name does not say how it is cut, they are plain rows, one rank's behind the
  /// other's.
  bool assume_plain = false;
  /// locate(): these chunks alone, by index in Manifest::chunks, ascending; unset = all of the
  /// tensors'. For readers that know which chunks they need: a rank among thousands opens a few
  /// items of each tensor.
  std::optional<std::vector<std::uint64_t>> chunks;
  bool wants(std::uint64_t chunk) const {
    return !chunks || std::binary_search(chunks->begin(), chunks->end(), chunk);
  }
};

enum class KeepPolicy : std::uint8_t { kDefault, kKeep, kDrop, kError };

/// Which ranks store what: there are as many parts as ranks times tensors.
struct StoredParts {
  /// Rank `rank` stores state entry `entry`: a value, or of a tensor the box of the same number.
  struct Part {
    std::uint32_t entry = 0;  // in Manifest::state.entries
    std::uint32_t rank = 0;
  };
  std::vector<Part> parts;
  PackedChunks boxes;  // as many, each whole; of values 0-dim ones

  void add(std::uint32_t entry, int rank, const Box& box = {}) {
    parts.push_back({entry, static_cast<std::uint32_t>(rank)});
    boxes.push_back(ChunkView(box.origin, box.shape.extents()));
  }
};

/// The files of a set of safetensors shards, as an index names them and what they hold.
struct ShardNames {
  std::string index;                           // the index' own file name
  std::map<std::string, std::string> file_of;  // by tensor
};

/// What the user wants written. Pure data.
struct TargetRequest {
  std::optional<std::int64_t> world_size;  // writing ranks; nullopt: the format's natural one (1)
  std::optional<Mesh> mesh;
  std::vector<std::pair<std::string, std::vector<Placement>>>
      placements;                      // glob -> placements; first match wins
  std::vector<std::string> replicate;  // globs stored as one chunk
  /// Set: exactly these parts, in this order in each rank's file, instead of a layout: what live
  /// ranks hold. `world_size` says how many ranks. Capabilities::takes_parts.
  std::optional<StoredParts> parts;
  std::uint64_t max_shard_bytes = 0;  // safetensors: 0 = one file
  std::optional<ShardNames>
      shard_names;         // safetensors: these files and this index, instead of cutting by size
  bool hf_preset = false;  // --to hf: index, format=pt
  /// Tied tensors left out: (dropped name, name that holds its bytes). Recorded where the format
  /// has a place for it.
  std::vector<std::pair<std::string, std::string>> aliases;
  KeepPolicy values = KeepPolicy::kDefault;
  KeepPolicy opaque = KeepPolicy::kDefault;
  std::string file_stem;     // stem of a one-file result: the archive prefix of torch-save
  bool single_file = false;  // DST names one file
  int zero_stage = 0;        // DeepSpeed: 1, 2 or 3; 0: the source's, else 2
  /// Megatron's rank files: a tensor whose name no rule knows is no fused one; see
  /// ReadOptions::assume_plain.
  bool assume_plain = false;
  /// Values of 0-dim optimizer state by tensor number, ascending: read ahead for formats that keep
  /// one step for many parameters (Capabilities::needs_steps).
  std::vector<std::pair<std::uint32_t, double>> steps;
};

struct Capabilities {
  bool reads = true;
  bool writes = true;
  bool many_ranks = false;       // --world-size N > 1 makes sense
  bool one_file_result = false;  // DST may be a file
  bool keeps_values = true;
  bool keeps_opaque = false;
  bool takes_parts = false;  // TargetRequest::parts
  bool needs_steps = false;  // output_plan() compares step counters: TargetRequest::steps
  bool groups_optimizers =
      false;  // writes groups with lists of members: flattened ones are grouped first
};

class FormatDriver {
 public:
  virtual ~FormatDriver() = default;
  virtual std::string_view id() const = 0;  // "torch-dcp"
  virtual Capabilities capabilities() const = 0;

  /// By content, reading at most a few KiB. May throw for a place that is something else: ask
  /// through probe_place() (registry.h), which says no there. A driver catches only where content
  /// that cannot be read is an answer of its own.
  virtual ProbeResult probe(const Place& place) const = 0;

  /// Reads headers and metadata. Throws kCorrupt naming file and tensor; kUnsupported naming the
  /// feature.
  virtual Manifest manifest(const Place& place, const ReadOptions& options) const = 0;

  /// Turns kPending sources of `tensors` (indices; sorted) into extents, checking what the inner
  /// archive says against the manifest: dtype, element count, view bounds. Each file is visited
  /// once. No tensor byte is read, except sparse tensors, which become dense inline bytes within
  /// the memory limit.
  virtual void locate(const Place& place, Manifest& manifest,
                      std::span<const std::uint32_t> tensors, const ReadOptions& options) const = 0;

  /// The files that would hold `source` (all its entries; selection and renaming happened before).
  /// No I/O. The plan refers to `source` (see OutputRenderer). Throws kUnsupported naming the first
  /// thing this format cannot hold.
  virtual OutputPlan output_plan(const Manifest& source, const TargetRequest& request) const = 0;
};

}  // namespace tessera

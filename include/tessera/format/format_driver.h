#pragma once
// FormatDriver: one checkpoint format. Stateless; all of them stand in one explicit table
// (registry.h).
//
//   probe -> manifest -> (locate) : reading, headers and metadata only until locate
//   output_plan                   : writing, no I/O at all
#include <tessera/format/format_options.h>
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
  std::string file;                      // "" : the folder itself is the checkpoint
  std::string display;                   // path as the user knows it, for messages
  std::uint64_t pickle_limit_bytes = 0;  // as ReadOptions has it, for probes that look into pickles
};

struct ProbeResult {
  enum class Answer : std::uint8_t {
    kNo,
    kMaybe,  // looks like it but damaged or incomplete: e.g. .distcp files without .metadata
    kYes,
  };
  /// How much of its files an answer has looked at.
  enum class Knows : std::uint8_t {
    kNames,    // what files with such names are, if no other format knows them better
    kContent,  // what only this format writes
  };
  Answer answer = Answer::kNo;
  std::string reason;  // "has .metadata and 4 .distcp files"
  /// The files that the answer is about, where several formats use such files ("rank files"): of
  /// two answers about the same ones, the one that knows more counts. "": its own alone.
  std::string_view about = {};
  Knows knows = Knows::kContent;
};

/// ProbeResult::about of files named by rank, which many frameworks write.
inline constexpr std::string_view kAboutRankFiles = "rank files";

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
  /// With it, an index that cannot be parsed is damage too, where the files' own names show which
  /// belong together: for salvage. Verbs that judge do not guess what an index said.
  bool guess_index = false;
  /// Only to list pickle globals (summary --globals): denied ones are listed in Manifest::globals
  /// instead of refused, and a root that is no state dict is an opaque value. Still nothing is
  /// called. Never set by a verb that reads tensors.
  bool list_globals = false;
  /// What single formats take (Capabilities::reads_with).
  FormatSettings own;
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
  /// What single formats take (Capabilities::writes_with).
  FormatSettings own;
  bool hf_preset = false;  // --to hf: the model alone, with an index, format=pt
  /// Tied tensors left out: (dropped name, name that holds its bytes). Recorded where the format
  /// has a place for it.
  std::vector<std::pair<std::string, std::string>> aliases;
  KeepPolicy values = KeepPolicy::kDefault;
  KeepPolicy opaque = KeepPolicy::kDefault;
  std::string file_stem;     // stem of a one-file result: the archive prefix of torch-save
  bool single_file = false;  // DST names one file
  /// Values of 0-dim optimizer state by tensor number, ascending: read ahead for formats that keep
  /// one step for many parameters (Capabilities::needs_steps).
  std::vector<std::pair<std::uint32_t, double>> steps;
};

/// A file beside checkpoints that names one of them.
struct PointerFile {
  std::string_view name;  // "latest_checkpointed_iteration.txt"
  /// Set: a number N in the file means this prefix and N with at least 7 digits, as "iter_" means
  /// iter_0000012; else the file has the name itself.
  std::string_view numbered;
};

enum class MegatronForm : std::uint8_t { kNone, kDist, kRankFiles };

/// What a format is like: all that operations and commands ask instead of comparing ids.
struct Capabilities {
  bool reads = true;
  bool writes = true;
  bool many_ranks = false;  // --world-size N > 1 makes sense
  bool keeps_values = true;
  /// Objects of unknown classes, and the types of Python's values: pickle formats.
  bool keeps_opaque = false;
  bool keeps_containers = false;  // tuples, sets and the like stay what they are
  bool takes_parts = false;       // TargetRequest::parts
  bool needs_steps = false;       // output_plan() compares step counters: TargetRequest::steps
  bool groups_optimizers =
      false;  // writes groups with lists of members: flattened ones are grouped first
  /// A mesh dim "vpp" counts model chunks of a rank, and is no dim of ranks.
  bool has_model_chunks = false;
  /// Which of Megatron's two forms it keeps. Both have the two halves of a gated matrix (SwiGLU) as
  /// one tensor; generators of random numbers, masters and groups lie otherwise in each.
  MegatronForm megatron = MegatronForm::kNone;

  // Where its files lie.
  bool is_container = false;     // knows what the bytes are: gives way to who knows what they mean
  bool is_weights = false;       // may be a model's weights alone, beside a run's other state
  bool is_loose_files = false;   // a folder of it may have checkpoints in folders below
  bool lists_contents = false;   // its metadata says what every file holds
  bool has_sum_list = false;     // integrity.json lists SHA-256 of its files
  bool joins_folders = false;    // its folders optimizer_N and pytorch_model_fsdp_N are one state
  bool joins_optimizer = false;  // its files and a folder optimizer_N beside them are one state

  // What it makes of what it is given.
  /// Optimizers in a form of its own, which is read by parameter: ids cannot be asked for.
  bool names_optimizers = false;
  /// Whether a dict was an OrderedDict or the like is lost; of the top alone with keeps_containers.
  bool loses_dict_kinds = false;
  /// A dict at the top that holds values alone is one value to its readers.
  bool joins_value_dicts = false;

  PointerFile pointer = {};
  std::span<const std::string_view> suffixes = {};      // of files that may be one: ".pt"
  std::span<const std::string_view> folder_files = {};  // globs: naming one means its folder
  std::string_view result_suffix = {};  // DST that ends so is one file of this format; "": none
  /// The same of a DST for which this format was asked: of another, it may be a folder (Lightning's
  /// sharded `epoch=0.ckpt`).
  std::span<const std::string_view> more_result_suffixes = {};
  std::string_view preset = {};  // --to this word: TargetRequest::hf_preset

  // What it takes beside the common requests.
  OptionList reads_with = {};
  OptionList writes_with = {};
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

  /// Whether a folder of this name is one rank's part of a checkpoint, which the folder around it
  /// is ("mp_rank_03"): naming it means the checkpoint.
  virtual bool is_rank_folder(std::string_view /*name*/) const { return false; }
  /// Whether the file at `place` is by itself a part of the checkpoint that its folder is. Asked
  /// where it could be read alone as well; may throw for a file that is something else.
  virtual bool is_one_of_several(const Place& /*place*/) const { return false; }
  /// For --verify: gives `source` the names and values that output_plan() writes anew by rules of
  /// the format, as `written` has them.
  virtual void restate_as_written(Manifest& /*source*/, const StateDict& /*written*/) const {}
};

}  // namespace tessera

#pragma once
// Opening: from what the user typed to a Manifest. The rules for PATH, in the order in which they are
// asked; the first that finds something decides (lib/ops/open/path_resolve.cc has them as a list,
// explain_path() what each says of a path). A file is
//
//   1. a pointer, by its name: `latest`, `latest_checkpointed_iteration.txt`, ...
//   2. a part of a folder, by its name (`.metadata`, an index): the folder is meant
//   3. a checkpoint: a format recognises it (damaged ones too)
//
// and a folder
//
//   1. one rank's folder of a checkpoint (`mp_rank_XX`): the checkpoint around it is meant
//   2. a checkpoint: a format recognises it; accelerate's optimizer_N joins rank files
//      (pytorch_model_fsdp_rank<R>.bin), and a pointer goes before weights that lie beside it
//   3. a pointer in it
//   4. the parts of one state: accelerate's optimizer_N with pytorch_model_fsdp_N
//   5. the one checkpoint below it (a folder with one torch.save file is that file); several below:
//      kNotFound listing them; list_run() gives them as rows
//
// Hidden names (our stages `.x.tmp-*` among them) are never checkpoints. A link to a regular file is
// that file, wherever it lies; links to folders below PATH are not followed, but for a link
// `latest` that stays inside the folder. URLs are kUnsupported with the command that copies them.
//
// Errors: kNotFound (absent, with the nearest name; several), kUnsupported (URL; ambiguous format,
// with candidates), kInvalidArgument (a selection that matches nothing), kCorrupt and others from
// the format's reader.
#include <tessera/format/format_driver.h>
#include <tessera/ops/select.h>
#include <tessera/state/manifest.h>
#include <tessera/storage/file_system.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

class SealedDirectory;
struct Seal;

struct OpenOptions {
  std::string from;     // format id; "" = detect by content
  Selection selection;  // root, include, exclude, only
  ReadOptions read;
  /// The part of the selection that will be read, if it is less than the selection: an entry with
  /// what lies below it ("" = all), or one part. Damage outside of it, or of the selection, is a
  /// note of the opened checkpoint (code ELSEWHERE), of which no more than this is left then; else
  /// it throws.
  std::string needed_name = {};
  std::optional<Part> needed_part = {};
  /// If our seal is there: bytes that do not match its checksums throw kCorrupt when they are read.
  /// (Only a few MiB of zip archives are compared, because those have checksums themselves.) False:
  /// a note (CK043) of the opened checkpoint, of metadata alone.
  bool check_seal = true;
};

/// A file or folder beside a checkpoint that belongs to the same training state and is not read
/// with it: an optimizer's file, a scheduler's, another framework's state. What belongs to no state
/// (configuration, tokenizer, logs, documentation) is none.
struct Beside {
  enum class Kind : std::uint8_t {
    kOptimizer,  // state of an optimizer, or a whole state that has one
    kWeights,    // weights that are no copy of those that were chosen
    kOther,      // may hold state, by its suffix alone
    kSidecar,    // scheduler, random numbers, trainer, data loader; copies of the weights
  };
  Kind kind = Kind::kSidecar;
  std::string path;  // relative to OpenedCheckpoint::beside_folder
  std::string what;  // "optimizer state"
  std::uint64_t bytes = 0;
  bool is_folder = false;
};

/// A checkpoint held open. Movable. The directory outlives every reader made from it.
struct OpenedCheckpoint {
  std::string path;         // resolved: the folder, or the file
  std::string display;      // as the user knows it; differs from `asked` when a choice was made
  std::string asked;        // what was typed
  std::string file;         // "" or the file's name inside `directory`
  std::string detected_by;  // the probe's reason, or "--from"
  const FormatDriver* driver = nullptr;
  std::unique_ptr<Directory> directory;
  /// Our manifest, if there is one; for several parts, or a lone file in a folder, their manifests
  /// combined.
  std::shared_ptr<const Seal> seal;
  SealedDirectory* sealed = nullptr;     // `directory`, where it is held against that
  bool is_part = false;                  // something was selected
  std::uint64_t pickle_limit_bytes = 0;  // of ReadOptions, as it was opened; holds for locate()
  Manifest manifest;
  std::string beside_folder;  // where `beside` lies; "" when PATH names the file itself
  std::vector<Beside> beside;
  /// A pointer, or PATH itself, names this checkpoint and not one next to it.
  bool is_named = false;
  /// PATH is one of several parts of one model, each of which holds a piece of its matrices: their
  /// names; "" for all else.
  std::string part_of;
  /// PATH is one file of a set, as a shard or a rank's, and is read alone: what is not read; "" for
  /// all else.
  std::string others;
  std::vector<Note>
      notes;  // about PATH: which pointer or child was chosen (code "PATH"), ignored neighbours

  /// Once tensors and values were read, and found sound by the sums of their records: throws
  /// kCorrupt where an archive that was opened is not the one that our seal means, such as that of
  /// another save. It compares the first and last MiB and a few between.
  void check_archives() const;

  /// Whether an element of a tensor lies in that byte.
  bool needs(std::string_view file, std::uint64_t byte) const;

  /// What is stored under `name`: its spec has type and shape. Throws kInvalidArgument with the
  /// nearest name.
  const StoredTensor& tensor(std::string_view name) const;
  /// All elements of a tensor, row-major, whatever its type and sharding; checksums are proved. T is
  /// float or double, which take every real type (rounded as PyTorch does), or std::int64_t,
  /// std::int32_t or std::uint8_t, which take integers and bool. Throws kOutOfRange for a value that
  /// T cannot hold, kUnsupported for a type that has no numbers.
  template <class T>
  std::vector<T> read(std::string_view name);

  Place place() const { return {directory.get(), file, display, pickle_limit_bytes}; }
  /// Locates these tensors (sorted, unique; see FormatDriver::locate). Idempotent. Throws
  /// kInvalidArgument for an index that is none of the manifest's.
  void locate(std::span<const std::uint32_t> tensors, const ReadOptions& options);
  /// Locates every tensor.
  void locate_all(const ReadOptions& options);
};

/// Resolves PATH, detects the format, reads the manifest, sets kinds, applies the selection.
OpenedCheckpoint open_checkpoint(FileSystem& fs, const std::string& path,
                                 const OpenOptions& options = {});

/// What one rule said of PATH.
struct PathStep {
  enum class Answer : std::uint8_t {
    kNotAsked,  // a rule before it has decided
    kYes,       // this is what PATH means
    kNo,        // `reason` says why not
    kFailed,    // it ended the search: `reason` is the failure
  };
  std::string rule;
  Answer answer = Answer::kNotAsked;
  std::string reason;
};
struct PathExplanation {
  std::string path;  // as asked
  bool is_folder = false;
  std::vector<PathStep> steps;  // in the order of the rules
  std::string found;            // the checkpoint's path; "" where there is none
  std::string format;           // its id
  Status failure;               // why there is none; kOk where there is one
};
/// How PATH is understood. Throws kNotFound and kUnsupported for what is no path here, as
/// open_checkpoint does; that no rule finds anything is a result.
PathExplanation explain_path(FileSystem& fs, const std::string& path, const std::string& from = "");

/// The formats that PATH is, without reading it: one, or those of the checkpoints below it; none
/// where none is recognised.
std::vector<const FormatDriver*> formats_at(FileSystem& fs, const std::string& path,
                                            const std::string& from = "");

/// One checkpoint of a run directory. Headers and metadata only.
struct RunRow {
  std::string path;                         // resolved
  std::string name;                         // relative to the run directory
  std::optional<std::int64_t> step;         // from its name
  std::optional<std::int64_t> stored_step;  // as it holds it itself
  std::string format;                       // id, or "" when unknown
  std::optional<std::int64_t> world_size;
  std::uint64_t bytes = 0;       // of its files; of the tensors that were selected
  std::uint64_t disk_bytes = 0;  // of all files in its folder: what it costs to keep
  std::int64_t modified_ns = 0;  // when the newest of them was written
  bool complete = false;
  std::string problem;  // why it is damaged, or not read; "" when complete
  /// It has something that is not understood here, and no damage was seen.
  bool is_refused = false;
  bool is_latest = false;  // the pointer names it
};

struct RunListing {
  std::string path;
  std::string pointer;              // file name of the pointer, "" = none
  std::string pointer_target;       // what it names, as written
  bool pointer_stale = false;       // it names nothing that is there
  std::vector<RunRow> rows;         // by step, then name in natural order
  std::uint64_t free_bytes = 0;     // where they lie
  std::int64_t listed_ns = 0;       // when they were looked at
  std::vector<std::string> others;  // of list_checkpoints(): paths that are no checkpoints
  std::vector<Note> notes;          // folders that may not be read

  /// The complete one with the highest step; where none has a step, the one written last. nullptr:
  /// none is complete.
  const RunRow* newest_whole() const;
};

/// For summary: the rows when several checkpoints lie below PATH (with or without a pointer),
/// nullopt when PATH is one checkpoint or resolves to one. Throws as open_checkpoint does when
/// nothing is there. Other verbs follow the pointer.
std::optional<RunListing> list_run(FileSystem& fs, const std::string& path,
                                   const OpenOptions& options = {});

/// The same rows for several paths (`run/*`): checkpoints, and folders of them; names are as typed.
/// What is no checkpoint is listed as such; throws kUnsupported where nothing else is there, and
/// kNotFound for a path that is absent.
RunListing list_checkpoints(FileSystem& fs, std::span<const std::string> paths,
                            const OpenOptions& options = {});

/// A pointer below (or at) PATH that names nothing: for verify. Nullopt when there is none or it is
/// fine.
std::optional<Note> stale_pointer(FileSystem& fs, const std::string& path);

/// The rank that wrote a file, where its name says so (`__3_0.distcp`, `shard-00002-...`).
std::optional<std::int64_t> writing_rank(std::string_view file_path);

/// Indices of tensors that are leaves (embedded ones excluded), in manifest order.
std::vector<std::uint32_t> leaf_tensors(const Manifest& manifest);

}  // namespace tessera

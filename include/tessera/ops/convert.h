#pragma once
// convert: reads one checkpoint and writes another of any format and layout. `reshard` is convert
// with an empty `to`.
//
//   open -> select -> locate -> rename, transform (ops/transform.h) -> output plan
//     -> preflight -> stage -> transfer -> (verify) -> publish
//
// Nothing is visible at `destination` until all of it is (storage/stage.h). Staged tensor bytes
// stay below `memory_limit_bytes` whatever the sizes. The output is byte-identical for every thread
// count.
//
// Every run ends with a balance (state/balance.h): everything the source holds is either written or
// left out for a stated reason. What a selection (`selection`, the preset hf) leaves out is listed
// there, too. A tensor that was selected and that the target cannot hold is kUnsupported before any
// work; objects that hold tensors count as tensors.
//
// Errors: kInvalidArgument (SRC = DST or nested, a glob that matches nothing, a rename that is no
// bijection), kAlreadyExists (DST is there and not `force`; or another run holds the same stage),
// kUnsupported (the target cannot hold something and no policy says what to do; training state lies
// beside the source and nothing says which part is meant), kResourceExhausted
// (no room for the output, before any work; or the limit is too small), kCorrupt (the source is
// damaged, or changed while it was read), kCancelled.
#include <tessera/base/progress.h>
#include <tessera/base/rank_group.h>
#include <tessera/format/format_driver.h>
#include <tessera/ops/open.h>
#include <tessera/ops/rank_state_policy.h>
#include <tessera/ops/rename.h>
#include <tessera/ops/seal.h>
#include <tessera/ops/transform.h>
#include <tessera/state/balance.h>
#include <tessera/state/optim_edit.h>
#include <tessera/storage/file_system.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

struct ConvertOptions {
  std::string source;       // PATH as the user typed it
  std::string destination;  // DST
  std::string from;         // format id; empty: detected by content
  /// What the source's format or the target's takes of its own; an option that neither takes is
  /// kInvalidArgument.
  FormatSettings own;
  std::string to;  // format id; empty: by DST's suffix, else the source's. "hf": the preset (sets
                   // target.hf_preset)
  std::string command;  // "ckpt-reshard": the word that error hints and the resume line start with

  /// world_size, mesh, placements, replicate, values, opaque. file_stem and single_file follow from
  /// `destination`, `own` from the one above.
  TargetRequest target;
  RankStatePolicy rank_state = RankStatePolicy::kDefault;

  Selection selection;  // state_follows is set by convert itself
  /// Both happen before the selection: --only model may take masters that it leaves out.
  OptimKeys optim_keys = OptimKeys::kKeep;
  bool prefer_master = false;
  NameRules names;  // then:
  Transformations transform;
  /// Model weights become the types that the shards of kAsIndexFlag have.
  bool dtype_as_index = false;
  /// Write weight deltas against this checkpoint, of any format: docs/formats/safetensors.md.
  std::string delta_from;
  bool copy_assets = false;
  std::string assets_directory;  // --copy-assets=DIR; empty: beside the source
  /// The model that it began from: a folder, or the name of one in the hub's cache ("org/name",
  /// "org/name@revision"), whose assets are copied.
  std::string base;

  std::uint64_t memory_limit_bytes =
      0;            // 0: the smaller of 1 GiB and half of what this process may use
  int threads = 0;  // 0: available_cpus()
  bool dry_run = false;
  bool force = false;
  bool resume = false;
  bool keep =
      true;  // for resume: what a cancelled run, or one that resumed and failed, has finished
  bool verify = false;     // a preset (hf) verifies without being asked,
  bool no_verify = false;  // but for this
  bool salvage = false;

  Progress* progress = nullptr;
  const CancelToken* cancel = nullptr;

  /// Processes that convert together, each with these same options; nullptr: only this process.
  /// convert() is then collective: every rank plans, each writes its share, rank 0 publishes. The
  /// result is byte-identical to one process'. An error on any rank is thrown on all. Rank 0's
  /// report is the whole one; the others' says whether it was published. Resuming, and keeping what
  /// a cancelled run has finished, is for one process: kUnsupported.
  RankGroup* ranks = nullptr;
};

/// One file of the result, as planned or as written.
struct ConvertedFile {
  std::string path;  // relative to DST; the name of DST itself for a one-file result
  std::uint64_t size_bytes = 0;
  std::uint64_t tensor_bytes = 0;
  std::uint32_t tensors = 0;  // chunks of tensors in it
};

/// What --verify compared with the source, and what it did not.
struct VerifyScope {
  /// Those of "content", "values", "steps" and "groups" that the result has.
  std::vector<std::string> compared;
  /// "3 values left out: --to hf ...", "6 tensors compared as cast: float32 -> bfloat16".
  std::vector<std::string> not_compared;
};

struct ConvertReport {
  std::string source;  // display path of what was opened
  std::string from;
  std::string to;
  std::string destination;
  std::optional<std::int64_t>
      world_size;  // writing ranks of the result; nullopt: a one-rank format
  std::vector<ConvertedFile> files;
  std::uint64_t tensors = 0;
  std::uint64_t source_bytes = 0;          // tensor bytes that are read
  std::uint64_t output_bytes = 0;          // exact size of all files, the seal not included
  std::uint64_t seal_bytes = 0;            // bound of tessera.manifest.json
  std::uint64_t temporary_bytes = 0;       // on disk besides the output: none, so 0
  std::uint64_t metadata_limit_bytes = 0;  // what the values of a pickle may take
  std::uint64_t metadata_bytes = 0;        // resident tables: manifest, output plan, copy plan
  std::uint64_t staged_bytes_bound = 0;    // peak of staged tensor bytes
  std::uint64_t peak_memory_bound = 0;     // metadata + staged
  std::uint64_t free_bytes = 0;            // at the destination
  std::uint64_t replaced_bytes = 0;        // what --force will remove afterwards
  std::vector<Note> notes;                 // the reader's, the writer's and ours
  std::vector<LostTensor> lost;            // salvage
  std::vector<std::string> assets;         // copied beside the result
  std::vector<std::string>
      dropped;      // names left out by a policy (values, opaque, rank state, ties)
  Balance balance;  // what the source holds = what was written + what was left out
  std::vector<AppliedTransformation> transformations;
  std::vector<DTypeTotal> dtypes;  // before and after, where a cast was asked for

  // After the work (not in a dry run).
  bool published = false;
  std::uint64_t bytes_read = 0;  // tensor bytes, gaps read through included
  std::uint64_t bytes_written = 0;
  std::uint64_t resumed_bytes = 0;  // found finished by --resume
  double seconds = 0;
  bool verified = false;  // proved equal to the source before publishing, as far as:
  VerifyScope verify_scope;
  std::vector<std::string>
      verify_findings;  // why not published (verified asked and failed): exit 1
  /// With --verify: number of values with parts that could not be followed, and so were not
  /// compared.
  std::uint64_t not_compared = 0;
};

/// Does the work (or, with dry_run, everything before byte one). When `verify` finds a difference
/// the report says so and nothing is published.
ConvertReport convert(FileSystem& fs, const ConvertOptions& options);

/// The stage a cancelled run of `options` left behind, if it did: for the `--resume` line. ""
/// otherwise.
std::string kept_stage(const FileSystem& fs, const ConvertOptions& options);

}  // namespace tessera

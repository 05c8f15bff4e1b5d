#pragma once
// audit: a run's folder over time. Every checkpoint below it is opened by headers and metadata, and
// held against the ones before it; tensors are read only where asked (`deep`).
//
//   without deep   newest whole checkpoint, pointer, missing parts, steps, optimizer state that is
//                  lost or begins again, content that did not change (by the checksums that seals
//                  and archives keep), ties, retention. Of tensors, one number at most is read for
//                  each optimizer: its step.
//   deep           one pass over weights and optimizer state: NaN and Inf, norms, updates, moments
//                  that were reset, tensors that never moved or were initialized again, spikes,
//                  replicas
//
// Checkpoints whose names differ in numbers alone (`step_90`, `step_100`) are one series; only these
// are compared with each other. They come in the order of the step in their names, else of the
// stored one.
//
// Sampling: where all tensors are more than `budget_bytes`, every 2^k-th block of 32768 elements is
// read (small tensors whole), the same blocks in each checkpoint. AuditSampling says what may be
// missed.
//
// Memory: one checkpoint's numbers and those of the one before it, and a few numbers for each tensor
// and checkpoint. Findings have stable codes, one table in docs/audit-codes.md.
#include <tessera/ops/open.h>
#include <tessera/reshard/tensor_reader.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

struct AuditOptions {
  OpenOptions open;  // from, selection
  bool deep = false;
  std::uint64_t budget_bytes = 0;  // that `deep` reads of tensors in all; 0: all of them
  /// Folder where what `deep` found of a checkpoint is kept, by its content; "": nowhere.
  std::string cache;
  std::uint32_t keep = 3;  // sound checkpoints of each series that retention leaves
  TransferOptions transfer;
};

struct AuditedCheckpoint {
  std::string path;
  std::string name;    // relative to the run's folder
  std::string series;  // its name with # for numbers
  std::optional<std::int64_t> name_step;
  std::optional<double> stored_step;
  std::string stored_step_source;  // "train_state.step", "trainer_state.json"
  std::optional<double> optimizer_step;
  std::string format;
  std::optional<std::int64_t> world_size;
  std::uint64_t bytes = 0;  // of its files
  std::uint64_t tensors = 0;
  std::uint64_t parameters_with_state = 0;
  bool complete = false;
  bool is_refused = false;  // not understood here, no damage was seen
  std::string problem;      // why not complete
  bool is_latest = false;   // the pointer names it
  bool sealed = false;      // our manifest is there and fits
  std::string root;         // content as SHA-256, where the seal has it
  std::string same_as;      // the checkpoint before it, whose content it repeats (AU010)
  bool sound = false;       // complete, and no error was found in it, nor names it
  // deep
  std::uint64_t bytes_read = 0;
  bool from_cache = false;

  /// The name's, else the stored one.
  std::optional<double> step() const;
};

struct AuditRetention {
  std::string name;
  std::uint64_t bytes = 0;
  std::string reason;
};

/// Numbers of one layer (`model.layers.3`), one for each checkpoint of the report; nullopt where it
/// has none.
struct AuditLayer {
  std::string series;
  std::string name;
  std::vector<std::optional<double>> norm;    // L2 of its weights
  std::vector<std::optional<double>> update;  // |w - before| / |before|, estimated by a sample
  std::vector<std::optional<double>> v_max;   // largest element of its second moments
};

/// What `deep` looked at.
struct AuditSampling {
  std::uint64_t bytes = 0;       // of the tensors
  std::uint64_t bytes_read = 0;  // of those that were not in the cache
  std::uint64_t every = 1;       // every n-th block was read
  /// With a confidence of 95 %: what fills this share of a tensor's blocks, or more, was seen.
  double seen_share = 0;
  double norm_error = 0;               // largest relative standard error of a norm
  std::uint64_t sampled_elements = 0;  // of each tensor, that changes are estimated by
};

struct AuditReport {
  std::string path;
  std::string pointer;         // file name, "" = none
  std::string pointer_target;  // as written
  std::string newest_whole;    // name; "" = none
  std::string newest_sound;    // the newest that no error names
  std::vector<AuditedCheckpoint> checkpoints;
  /// By severity, then code. Note::file names a checkpoint.
  std::vector<Note> findings;
  std::vector<AuditRetention> retention;  // what could go
  std::uint64_t retention_bytes = 0;
  bool deep = false;
  AuditSampling sampling;
  std::vector<AuditLayer> layers;  // deep
  std::vector<Note> notes;
  bool ok() const;  // no finding of Severity::kError
};

/// Throws kNotFound where nothing is a checkpoint; what is wrong with one of them is a finding.
AuditReport audit_run(FileSystem& fs, const std::string& path, const AuditOptions& options);

enum class TrendOf : std::uint8_t { kNorm, kVMax, kUpdate };

struct TrendOptions {
  std::vector<std::string> tensors;  // globs: names of tensors, or of their parameters
  TrendOf of = TrendOf::kNorm;
  AuditOptions audit;  // open, budget_bytes, cache, transfer
};

struct TrendLine {
  std::string tensor;
  std::string series;
  std::vector<std::optional<double>> values;  // one for each checkpoint
};

struct TrendReport {
  std::string path;
  TrendOf of = TrendOf::kNorm;
  std::vector<AuditedCheckpoint> checkpoints;
  std::vector<TrendLine> lines;
  AuditSampling sampling;
  std::vector<Note> notes;
};

/// One number of some tensors over the run. Throws kInvalidArgument where none matches.
TrendReport trend_of_run(FileSystem& fs, const std::string& path, const TrendOptions& options);

}  // namespace tessera

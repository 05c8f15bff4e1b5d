#pragma once
// One ZeRO checkpoint, opened: its files, what they say, and where every parameter's elements lie.
// The model's and the optimizer's readers work on it (reader.cc, optim_reader.cc).
//
//   files --open_checkpoint--> ranks, stage --place--> parameters
#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "lib/format/deepspeed_zero/files.h"
#include "lib/format/deepspeed_zero/places.h"
#include "lib/format/findings.h"
#include "lib/format/torch_files/archive_bytes.h"
#include "lib/format/torch_files/archive_manifest.h"

namespace tessera::deepspeed {

/// What all stages of a pipeline share.
struct ZeroFiles {
  ZeroFiles(const Place& place, const ReadOptions& options);

  ArchiveManifestBuilder builder;
  ArchiveBytes bytes;
  Findings findings;
};

/// Opens a file of torch.save. Where it cannot be read: nullopt, and a finding that says whose it is.
std::optional<std::uint32_t> open_or_report(ArchiveManifestBuilder& builder, Findings& findings,
                                            const std::string& path, std::string_view whose);

struct ZeroCheckpoint {
  /// `files` must outlive it.
  ZeroCheckpoint(ZeroFiles& files, Folder its_files);

  Folder folder;
  ArchiveManifestBuilder& builder;
  ArchiveBytes& bytes;
  Findings& findings;
  ModelFile model;                              // of the lowest rank
  std::vector<ModelFile> fragments;             // stage 3: of every rank, if parameters are frozen
  std::vector<std::optional<OptimFile>> ranks;  // empty: without ZeRO
  std::int64_t stage = 0;
  std::int64_t expert_ranks = 1;  // ranks that share out the experts; 1: none are shared out
  std::vector<TrainedParameter> parameters;
  std::unordered_map<std::string, std::size_t> trained;  // name -> index in parameters
  std::unordered_map<std::string, std::string> shared;   // tied name -> the one that is stored
  std::unordered_map<std::string, Shape> frozen;

  std::int64_t world_size() const { return static_cast<std::int64_t>(ranks.size()); }
  const std::string& path(std::uint32_t file) { return builder.manifest().files[file].path; }
  const ArchiveTensor& tensor(std::uint32_t file, std::uint32_t index) const {
    return builder.archive(file).tensors.at(index);
  }
  /// The lowest rank whose file is there. Precondition: there is one.
  const OptimFile& first_rank() const;
  const OptimFile& rank_of(const FlatRun& run) const { return *ranks[run.rank]; }
  std::uint32_t master_of(const FlatRun& run) const { return rank_of(run).fp32.at(run.buffer); }
  DType master_type(const TrainedParameter& parameter) const;
  /// Pieces of `parameter`, each from `tensor(run)` of its rank; nullopt leaves a hole.
  std::vector<ArchivePiece> pieces_of(
      const TrainedParameter& parameter,
      const std::function<std::optional<std::uint32_t>(const FlatRun&)>& tensor) const;
};

/// Opens the files and places the parameters. Damage that leaves the rest readable is a finding.
void open_checkpoint(ZeroCheckpoint& checkpoint);

/// One group of the optimizer: its options as stored, and the names of its parameters.
struct NamedGroup {
  Value options;
  std::vector<std::string> members;
};
struct NamedGroups {
  std::uint32_t file = 0;  // that the options are of
  Value step;
  std::vector<NamedGroup> groups;
};

/// Adds the optimizer: state by parameter, groups, fields (optim_reader.cc).
void add_optimizer(ZeroCheckpoint& checkpoint);
/// Its parts, for stages of a pipeline, whose groups are one: the state alone; the groups; the
/// fields.
void add_optimizer_state(ZeroCheckpoint& checkpoint);
NamedGroups optimizer_groups(ZeroCheckpoint& checkpoint);
void add_optimizer_fields(ZeroCheckpoint& checkpoint);

/// Notes padding of the ranks' buffers that is not zero, and rank files that are another rank's by
/// their own word (checks.cc).
void check_pads(ZeroCheckpoint& checkpoint);
void check_slices(ZeroCheckpoint& checkpoint);

}  // namespace tessera::deepspeed

#pragma once
// FairScale's files as one logical state: parameters by FQN under `model`, the optimizer by FQN
// under `optim`, whatever else users saved beside them. docs/formats/fairscale-fsdp.md.
#include "lib/format/fairscale_fsdp/checkpoint.h"

namespace tessera::fairscale {

/// Keys in Manifest::provenance: what a writer of the same format keeps.
inline constexpr std::string_view kWrappersKey = "fairscale.wrappers";  // JSON
inline constexpr std::string_view kNamingKey = "fairscale.files";       // "rank_*.pt"
inline constexpr std::string_view kPartKeys =
    "fairscale.keys";  // JSON: of weights, metadata, optimizer
inline constexpr std::string_view kOptimizerKey = "fairscale.optimizer";  // how it was stored
inline constexpr std::string_view kRankOptimizers = "per rank";
inline constexpr std::string_view kGatheredOptimizer = "gathered";

/// Entry under which state stands that ranks do not share with each other.
inline constexpr std::string_view kOwnStateKey = "no_broadcast";

Manifest read_manifest(const Place& place, const ReadOptions& options);

// The parts of it, in order:
void read_model(Checkpoint& checkpoint);               // model.cc
void read_rank_optimizers(Checkpoint& checkpoint);     // rank_optim.cc
void read_gathered_optimizer(Checkpoint& checkpoint);  // gathered_optim.cc
void read_extras(Checkpoint& checkpoint);              // extras.cc

/// Adds `values` (part of `files`, one each by rank, nullptr where a rank has none) under `path`:
/// once when all ranks that have it stored the same, else as <path>.rank_<r>.
void add_shared_value(Checkpoint& checkpoint, const Path& path,
                      const std::vector<std::optional<Part>>& values);

/// Parameters of a backing parameter: FQN, spec shape and its elements [begin, end).
struct PlacedParameter {
  std::string fqn;
  Shape shape;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};
std::vector<PlacedParameter> placed_parameters(const Checkpoint& checkpoint,
                                               const BackingPlace& place);

/// Pieces of one parameter of `place`, read from `tensors` (by rank), which are laid out as the
/// backing parameter's own shards are.
std::vector<ArchivePiece> pieces_of(const BackingPlace& place, const PlacedParameter& parameter,
                                    const std::vector<std::optional<TensorRef>>& tensors);

/// Notes (CK065) shards of `tensors` (by rank), laid out as those of `place`, whose padding is not
/// zero.
void note_used_padding(Checkpoint& checkpoint, const BackingPlace& place,
                       const std::vector<std::optional<TensorRef>>& tensors,
                       const std::string& what);

/// A stored tensor as part of a value of leaf `name`; it has no leaf of its own.
Value embed(Checkpoint& checkpoint, const std::string& name, TensorRef ref);

/// A value of archive `file` with the tensors in it embedded in leaf `name`.
Value embed_all(Checkpoint& checkpoint, const std::string& name, std::uint32_t file,
                const Value& value);

/// True when rank `rank` holds the same as the ranks that `place` is read from.
bool is_copy(Checkpoint& checkpoint, const BackingPlace& place,
             const std::vector<std::optional<TensorRef>>& tensors, std::size_t rank);

/// "no_broadcast.rank_3": the leaf for what rank 3 has alone.
std::string own_state_name(std::size_t rank);

}  // namespace tessera::fairscale

#pragma once
// Rank objects: Megatron's values of single ranks, whose names hold their place in the mesh they
// were saved at ("rng_state/shard_0.1_1.2": the second of two tensor-parallel ranks). A load at
// another mesh asks for other names: nothing of them can reach a wrong rank, so that they may go
// along to another mesh by default, with a warning that a load there starts without them.
//
//   rng_state                  [pp, tp], or [pp, tp, dp] under expert parallelism (2025/12 -
//                              2026/03)
//   rerun_state_machine_state  [world]
//   any other key              [pp, tp(, dp)], or one number: model-parallel ranks or all
//
// Source: get_rng_state in megatron/training/checkpointing.py, state_dict in
// megatron/core/rerun_state_machine.py.
#include <tessera/layout/mesh.h>
#include <tessera/ops/rank_state_policy.h>
#include <tessera/state/manifest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

/// The ranks of a result, as far as the target states them.
struct ResultRanks {
  std::optional<std::int64_t> world_size;  // nullopt: one
  std::optional<Mesh> mesh;
};

struct RankObject {
  std::size_t entry = 0;    // in StateDict::entries; several may lie below one object
  std::int64_t number = 0;  // of its place, row-major
  std::string family;       // "rng_state/shard_*_1.2"
  bool changes = false;     // the result has other ranks than the object's grid
};
std::vector<RankObject> find_rank_objects(const Manifest& manifest, const ResultRanks& ranks);

/// Note that says what happens to these objects; nullopt if each keeps its place in the mesh.
std::optional<Note> rank_objects_note(const Manifest& manifest, RankStatePolicy policy,
                                      const ResultRanks& ranks);
/// kDrop leaves all out, kRank0 all but those of the first place, kError throws kUnsupported where
/// there are any. Returns the names left out.
std::vector<std::string> apply_to_rank_objects(Manifest& manifest, RankStatePolicy policy,
                                               const ResultRanks& ranks);

/// For a result in Megatron's rank files, which have each rank's own value under one name: the
/// generators of random numbers that keep their place in the mesh become the ranks' own,
/// "rng_state.rank_<N>", numbered as those files are, by stage, expert-parallel and tensor-parallel
/// rank. `manifest`: located.
void random_states_to_ranks(Manifest& manifest, const ResultRanks& ranks);
/// The inverse, for a result in torch_dist: ranks' own generators become objects of their places.
/// Where ranks are others than the result's, or expert-parallel, they stay.
void random_states_to_objects(Manifest& manifest, const ResultRanks& ranks);

}  // namespace tessera

#pragma once
// Matching what a live state asks for with what a checkpoint holds, by name.
//
//   same shape and type             filled
//   same shape, other float type    filled and cast
//   one element on both sides       a number: 0-dim, [1], or a plain value (optimizer steps); cast
//                                   where both are tensors, of different types
//   a value on both sides           handed to the state's callbacks
//   anything else                   mismatched
//
// Pure.
#include <tessera/live/load.h>
#include <tessera/state/live_state.h>
#include <tessera/state/manifest.h>
#include <tessera/state/roles.h>

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace tessera {

/// Live entry `live` is filled from stored entry `stored`.
struct Match {
  enum class Kind : std::uint8_t { kTensor, kNumber, kValue };
  Kind kind = Kind::kTensor;
  std::uint32_t live = 0;    // in LiveState::dict
  std::uint32_t stored = 0;  // in Manifest::state
};

/// Names that some rank asks for, as they are stored, and the parts they belong to.
struct AskedNames {
  std::set<std::string> names;
  std::set<Role> roles;
  /// Values of optimizers' groups that every rank has where one has (hyperparameters), in whose
  /// absence ranks would step otherwise: which ranks ask for them.
  std::map<std::string, std::vector<int>> of_groups;
};

/// The name under which `entry` of `state` is stored.
std::string stored_name(const LiveState& state, const StateEntry& entry, int rank);

/// What this rank asks for, as bytes for the others; and all of theirs together.
Bytes encode_asked(const LiveState& state, int rank);
AskedNames join_asked(std::span<const std::vector<std::byte>> all);

/// Appends to the lists of `result`. Nothing is refused here.
std::vector<Match> match_state(const LiveState& state, const Manifest& stored,
                               const AskedNames& asked, int rank, const LoadPolicy& policy,
                               LoadResult& result);

/// Throws kInvalidArgument where ranks have different optimizers.
void check_same_optimizers(const AskedNames& asked, int ranks);

/// Throws kInvalidArgument for what the policy does not allow, naming tensors, what was expected
/// and what was found.
void judge_match(const LiveState& state, const Manifest& stored, const AskedNames& asked,
                 const LoadPolicy& policy, const LoadResult& result);

}  // namespace tessera

#pragma once
// What is neither weights nor optimizer state: other keys of the files, and what single ranks keep
// for themselves. Pure.
//
//   <key>...                    on every rank; with tensors in it, on rank 0 alone
//   <key>...rank_<r>...         on rank r
//   no_broadcast.rank_<r>       rank r's own parameters and their state, in place of rank 0's
#include <map>
#include <string>
#include <vector>

#include "lib/format/fairscale_fsdp/target_optim.h"

namespace tessera::fairscale {

class RestOfState {
 public:
  RestOfState() = default;
  /// Throws kUnsupported for state of ranks that the result does not have.
  RestOfState(const Manifest& source, const Roles& roles, const std::string& model_root,
              const TargetOptimizer& optimizer, const std::vector<bool>& kept,
              std::int64_t world_size);

  bool has_key(const std::string& key) const { return keys_.contains(key); }
  /// Entries of rank `rank`'s root beside the parts.
  ValueDict of_rank(std::int64_t rank) const;
  /// Other keys of rank `rank`'s optimizer (-1: the gathered one).
  ValueDict optimizer_keys(std::int64_t rank) const;

  /// A rank's own backing parameter or state of one; nullptr: it has rank 0's.
  const Value* own_weight(std::int64_t rank, const std::string& key) const;
  const Value* own_state(std::int64_t rank, const std::string& key) const;
  bool has_own_state() const;

 private:
  struct Own {
    Value weights;
    Value state;
  };
  void add(const Manifest& source, std::size_t entry, std::size_t skip,
           std::map<std::int64_t, StateDict>& to) const;
  void place_containers(const Manifest& source);

  std::int64_t world_size_ = 1;
  std::map<std::int64_t, StateDict> by_rank_;       // -1: every rank
  std::map<std::int64_t, StateDict> of_optimizer_;  // -1: every rank's
  std::map<std::int64_t, Own> own_;
  std::map<std::string, bool> keys_;  // top-level keys -> some tensor below
};

}  // namespace tessera::fairscale

#pragma once
// How one sharded tensor is spread over its shard group, and moving it between that and whole:
// parameters, and optimizer state of a parameter's shape. One tensor at a time, so that the memory
// beside the result is one tensor's.
//
//   gather    shards -> whole, on every rank, or on the unit's first one alone
//   scatter   whole (every rank's own, or the first one's, broadcast) -> shards
//
// Collective over the unit's ranks.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "fsdp_core/unit/unit.h"

namespace tessera::fsdp {

struct Spread {
  std::shared_ptr<detail::Unit> unit;
  std::vector<std::int64_t> shape;  // of the whole
  /// Elements [begin, end) of the whole's row-major ravel, by shard rank.
  std::vector<std::pair<std::int64_t, std::int64_t>> ranges;
  bool first_only = false;  // the whole exists on the unit's first rank alone

  static Spread of(std::shared_ptr<detail::Unit> unit, const ParamGroup& group, std::size_t p);
  bool here() const { return !first_only || unit->is_first_rank(); }
  /// Undefined where the whole is not kept.
  at::Tensor gather(const at::Tensor& local) const;
  void scatter(const at::Tensor& whole, const at::Tensor& local) const;
};

}  // namespace tessera::fsdp

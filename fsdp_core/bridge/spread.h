#pragma once
// How one sharded tensor is spread over its shard group, and moving it between that, whole, and
// equal rows: parameters, and optimizer state of a parameter's shape. One tensor at a time, so that
// the memory beside the result is one tensor's.
//
//   gather    shards -> whole, on every rank, or on the group's first one alone; or this rank's rows
//   scatter   back: whole (every rank's own, or the first one's, broadcast) or rows -> shards
//
// Rows are cut as torch.chunk cuts them, which is what Shard(0) means; a tensor without dims is
// whole on every rank. Collective over the ranks that the parameter is sharded over. Beside the result at most twice the tensor
// lies in memory, on the device that the unit computes on.
#include <ATen/core/Tensor.h>
#include <tessera/layout/layout.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "fsdp_core/runtime/unit.h"

namespace tessera::fsdp {

struct Spread {
  enum class Form : std::uint8_t { kWhole, kWholeOnFirstRank, kRows };
  using Ranges = std::vector<std::pair<std::int64_t, std::int64_t>>;

  std::shared_ptr<detail::Unit> unit;
  const ParamGroup* group = nullptr;  // of the unit
  std::vector<std::int64_t> shape;    // of the whole
  /// Elements [begin, end), by shard rank, of the whole's row-major ravel once `dim` is its first.
  Ranges ranges = {};
  Form form = Form::kWhole;
  int dim = 0;  // that shards are cut on

  static Spread of(std::shared_ptr<detail::Unit> unit, const ParamGroup& group, std::size_t p,
                   Form form);
  /// Whether gather gives this rank anything.
  bool here() const { return form != Form::kWholeOnFirstRank || comms().is_first_rank(); }
  UnitGroups& comms() const { return group->comms(); }
  /// Where the unit's collectives take tensors; shards may lie elsewhere (offloaded ones).
  at::Device device() const { return group->device(); }
  /// What this rank's part is of the whole, in the form that gather gives.
  Box box() const;
  /// As `form` says; undefined where nothing is kept.
  at::Tensor gather(const at::Tensor& local) const;
  void scatter(const at::Tensor& given, const at::Tensor& local) const;
  /// The whole, on every rank, whatever the form.
  at::Tensor gather_whole(const at::Tensor& local) const;

 private:
  at::Tensor join(const at::Tensor& part, const Ranges& parts,
                  std::pair<std::int64_t, std::int64_t> kept) const;
  at::Tensor cut_first(const at::Tensor& tensor) const;
  at::Tensor shaped(const at::Tensor& ravel) const;
  at::Tensor from_first_rank(const at::Tensor& whole, at::ScalarType type) const;
};

}  // namespace tessera::fsdp

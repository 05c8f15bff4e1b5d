#pragma once
// The flat buffers of the distributed optimizer (distrib_optim.pt) of one rank, made from state of
// whole parameters. The inverse of merge_buckets().
#include <map>
#include <string>
#include <vector>

#include "lib/format/megatron_torch/optim_output.h"

namespace tessera::megatron_torch {

class BufferOutput {
 public:
  BufferOutput(const Manifest& source, const Args& args,
               const std::map<std::string, const OptimParameter*>& by_fqn)
      : source_(source), args_(args), by_fqn_(by_fqn) {}

  /// What one optimizer stores: {"buckets_coalesced", 0: {dtypes: buffers}, ...}. `tensors`: its
  /// share of the rank's model dict, chunk by chunk; those without state are frozen and left out.
  Value buffers(RankWriter& out, const TargetCut& cut, std::int64_t rank,
                const std::vector<const WrittenTensor*>& tensors) const;

 private:
  ValueDict one_set(RankWriter& out, const TargetCut& cut, std::int64_t rank,
                    const std::vector<const WrittenTensor*>& tensors) const;
  std::size_t candidates(const std::vector<const WrittenTensor*>& tensors, std::size_t chunk,
                         DType dtype) const;
  const OptimLeaf& leaf_of(const WrittenTensor& tensor, std::string_view leaf) const;

  const Manifest& source_;
  const Args& args_;
  const std::map<std::string, const OptimParameter*>& by_fqn_;
};

}  // namespace tessera::megatron_torch

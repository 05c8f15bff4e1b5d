#include "lib/format/megatron_torch/buffer_output.h"

#include <fmt/format.h>
#include <tessera/base/error.h>

#include <algorithm>
#include <utility>

#include "lib/format/megatron_torch/bucket_layout.h"
#include "lib/format/megatron_torch/buckets.h"
#include "lib/format/megatron_torch/id_match.h"
#include "lib/format/megatron_torch/optim_merge.h"

namespace tessera::megatron_torch {

const OptimLeaf& BufferOutput::leaf_of(const WrittenTensor& tensor, std::string_view leaf) const {
  const OptimLeaf* found = by_fqn_.at(tensor.fqn)->find(leaf);
  if (!found && leaf == kMasterLeaf) found = by_fqn_.at(tensor.fqn)->find("param");
  const bool fits = found && found->tensor != kNoTensor &&
                    source_.tensors[found->tensor].spec ==
                        TensorSpec{DType::kFloat32, source_.tensors[tensor.tensor].spec.shape};
  if (!fits)
    in_tensor(tensor.fqn, [&] {
      fail(Code::kUnsupported,
           fmt::format("the distributed optimizer keeps {} of every parameter as float32 of its "
                       "shape",
                       leaf));
    });
  return *found;
}

ValueDict BufferOutput::one_set(RankWriter& out, const TargetCut& cut, std::int64_t rank,
                                const std::vector<const WrittenTensor*>& tensors) const {
  std::vector<BucketParam> params;
  for (const WrittenTensor* tensor : tensors)
    params.push_back(
        {cut.part(tensor->tensor, tensor->fqn, rank).shape.numel(), tensor->shared_embedding});
  const BucketLayout layout = bucket_layout(params, bucket_sizes(args_, 1)[0], true);
  ValueDict dict;
  for (const auto& [key, leaf] : kBuffers) {
    RankPart buffer{Shape{layout.numel_unpadded}, {}};
    std::int64_t at = 0;
    const auto pad_to = [&](std::int64_t begin) {
      if (begin == at) return;
      StoragePiece zeros;
      zeros.zero_bytes = static_cast<std::uint64_t>(begin - at) * sizeof(float);
      buffer.pieces.push_back(zeros);
      at = begin;
    };
    std::uint32_t any = 0;
    for (std::size_t i = tensors.size(); i-- > 0;) {
      any = leaf_of(*tensors[i], leaf).tensor;
      pad_to(layout.begin[i]);
      RankPart part = cut.part(any, tensors[i]->fqn, rank);
      at += part.shape.numel();
      std::ranges::move(part.pieces, std::back_inserter(buffer.pieces));
    }
    pad_to(layout.numel_unpadded);
    dict.emplace_back(Value::string(std::string(key)), out.tensor(any, std::move(buffer)));
  }
  dict.emplace_back(Value::string("numel_unpadded"), Value::integer(layout.numel_unpadded));
  return dict;
}

/// As many a reader takes for parameters of the buffer, where nothing says which they are.
std::size_t BufferOutput::candidates(const std::vector<const WrittenTensor*>& tensors,
                                     std::size_t chunk, DType dtype) const {
  return static_cast<std::size_t>(std::ranges::count_if(tensors, [&](const WrittenTensor* tensor) {
    return tensor->chunk == chunk && source_.tensors[tensor->tensor].spec.dtype == dtype &&
           !tensor->fqn.ends_with("_extra_state");
  }));
}

Value BufferOutput::buffers(RankWriter& out, const TargetCut& cut, std::int64_t rank,
                            const std::vector<const WrittenTensor*>& tensors) const {
  // One buffer for each model chunk and type of weights, in the order in which they first occur.
  std::vector<std::pair<std::pair<std::size_t, DType>, std::vector<const WrittenTensor*>>> sets;
  for (const WrittenTensor* tensor : tensors) {
    const auto owner = by_fqn_.find(tensor->fqn);
    if (owner == by_fqn_.end() || owner->second->leaves.empty()) continue;
    const std::pair key{tensor->chunk, source_.tensors[tensor->tensor].spec.dtype};
    const auto known = std::ranges::find(sets, key, [](const auto& set) { return set.first; });
    if (known != sets.end()) {
      known->second.push_back(tensor);
    } else {
      sets.push_back({key, {tensor}});
    }
  }
  const bool in_fp32 = args_.boolean("accumulate_allreduce_grads_in_fp32").value_or(true);
  ValueDict made = {{Value::string("buckets_coalesced"), Value::boolean(true)}};
  std::int64_t number = 0;
  for (const auto& [key, set] : sets) {
    const DType dtype = key.second;
    const Value dtypes =
        Value::list({Value::dtype(dtype), Value::dtype(in_fp32 ? DType::kFloat32 : dtype)},
                    Value::Kind::kTuple);
    ValueDict buffers = one_set(out, cut, rank, set);
    if (set.size() < candidates(tensors, key.first, dtype)) {
      std::vector<std::string> members;
      for (const WrittenTensor* tensor : set) members.push_back(tensor->fqn);
      buffers.emplace_back(Value::string(std::string(kMembers)), names_value(members));
    }
    made.emplace_back(Value::integer(number++),
                      Value::dict({{dtypes, Value::dict(std::move(buffers))}}));
  }
  return Value::dict(std::move(made));
}

}  // namespace tessera::megatron_torch

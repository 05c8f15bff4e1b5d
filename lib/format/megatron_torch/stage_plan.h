#pragma once
// Which rank of the target holds which part of the model, and under which numbers of layer and
// expert. Interleaved pipelines: chunk v of stage p holds the layers behind those of chunk v of all
// earlier stages.
//
//   8 layers, pp 2, vpp 2      stage 0: chunk 0 = 0,1  chunk 1 = 4,5
//                              stage 1: chunk 0 = 2,3  chunk 1 = 6,7
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/format/megatron_torch/tp_rule.h"

namespace tessera::megatron_torch {

/// Sizes of the target.
struct TargetGrid {
  std::int64_t tp = 1, pp = 1, ep = 1;
  std::int64_t vpp = 1;  // model chunks of a stage
  std::int64_t ranks() const { return tp * pp * ep; }
};

struct StagePlace {
  std::int64_t stage = 0;
  std::int64_t chunk = 0;
  std::int64_t layer_offset = 0;            // to add to its layer number: 0 or negative
  std::optional<std::int64_t> expert_rank;  // nullopt: every expert-parallel rank holds it
  std::int64_t expert_offset = 0;           // to add to its expert's number: 0 or negative
};

class StagePlan {
 public:
  /// `names`: of the model's tensors, in order, without the root. Throws kInvalidArgument where
  /// layers or experts cannot be shared evenly, kUnsupported for several stacks of layers (encoder,
  /// decoder) and for experts packed in one tensor.
  StagePlan(const std::vector<std::string>& names, const TargetGrid& grid);

  StagePlace place(const std::string& name) const;
  bool has_experts() const { return has_experts_; }
  std::int64_t layers_per_chunk() const { return per_chunk_; }

 private:
  void share_layers(const std::vector<std::string>& names);
  void share_experts(const std::vector<std::string>& names);
  StagePlace layers_place(const std::string& name) const;

  TargetGrid grid_;
  bool has_experts_ = false;
  std::string stack_;  // "decoder.layers."
  std::int64_t per_chunk_ = 0;
  std::map<std::string, std::int64_t> experts_;  // of each family, on each rank
  std::map<std::string, std::size_t, std::less<>> order_;
  std::size_t first_layer_ = 0;  // position of the first name of a layer
};

}  // namespace tessera::megatron_torch

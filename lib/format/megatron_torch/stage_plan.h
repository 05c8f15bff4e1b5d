#pragma once
// Which pipeline stage of the target holds which part of the model, and under which layer number.
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "lib/format/megatron_torch/tp_rule.h"

namespace tessera::megatron_torch {

struct StagePlace {
  std::int64_t stage = 0;
  std::int64_t layer_offset = 0;  // to add to its layer number: 0 or negative
};

class StagePlan {
 public:
  /// `names`: of the model's tensors, in order, without the root. Throws kInvalidArgument where
  /// layers cannot be shared evenly, kUnsupported for several stacks of layers (encoder, decoder).
  StagePlan(const std::vector<std::string>& names, std::int64_t stages);

  StagePlace place(const std::string& name) const;

 private:
  std::int64_t stages_;
  std::string stack_;  // "decoder.layers."
  std::int64_t per_stage_ = 0;
  std::map<std::string, std::size_t, std::less<>> order_;
  std::size_t first_layer_ = 0;  // position of the first name of a layer
};

}  // namespace tessera::megatron_torch

#pragma once
// What one rank stored under `optimizer`, taken apart, and its ids matched with its parameters.
//
//   {"state", "param_groups"}                                   fp32 weights
//   {"optimizer": {that}, "fp32_from_fp16_params", ...}         16-bit weights, distributed
//   [one of these, another]                                     chained: expert parameters last
#include <tessera/state/value.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lib/format/megatron_torch/model_merge.h"
#include "lib/format/megatron_torch/ranks.h"

namespace tessera::megatron_torch {

/// One optimizer of one rank. Null members: it has none of that.
struct RankOptimizer {
  const RankFile* file = nullptr;
  const Value* outer = nullptr;  // what stands under `optimizer`, or in its list
  const Value* inner = nullptr;  // where state and param_groups stand
  bool nested = false;           // inner is outer's own `optimizer`
  const Value* state = nullptr;
  const Value* groups = nullptr;
  const Value* masters = nullptr;
};

/// Those of one rank, in the order of its list; one where `value` is no list.
std::vector<RankOptimizer> take_apart(const RankFile& file, const Value* value);

/// Ids and other keys of a state dict, as text.
std::string id_text(const Value& key);

/// Does the group decay its weights? Megatron's groups of biases and vectors do not.
bool has_decay(const Value& group);

/// Ids of one optimizer and the parameters they stand for.
struct MatchedIds {
  std::map<std::string, const LocalTensor*> by_id;
  std::vector<std::vector<std::string>> groups;  // ids
};
/// Matches by the names that the groups record, else by order and shape (id_match.h). `tensors`:
/// those the optimizer may have. nullopt: a doubt remains.
std::optional<MatchedIds> match_ids(const Ranks& ranks, const RankOptimizer& optimizer,
                                    const std::vector<const LocalTensor*>& tensors);

/// Does any rank hold parameters of experts?
bool has_experts(const std::vector<std::vector<LocalTensor>>& local);

/// Those of a rank's tensors that optimizer `index` of `count` may have. `experts`: the model has
/// some, so that the last optimizer is theirs. nullopt: unknown.
std::optional<std::vector<const LocalTensor*>> share_of(const std::vector<LocalTensor>& tensors,
                                                        std::size_t index, std::size_t count,
                                                        bool experts);

}  // namespace tessera::megatron_torch

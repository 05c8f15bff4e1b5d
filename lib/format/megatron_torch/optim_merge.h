#pragma once
// The whole optimizer from what the ranks hold of it. Ranks number parameters on their own (ids run
// through their groups, in the order of their model dict), so ids become names in the whole model:
//
//   optimizer.optimizer.state.<id>.exp_avg         optimizer.state.<fqn>.exp_avg
//   optimizer.optimizer.param_groups               optimizer.param_groups, members by name
//   optimizer.fp32_from_fp16_params[group][i]      optimizer.state.<fqn>.fp32_param
//   optimizer[1]...., of experts                   the same, in the same groups
//   distrib_optim.pt, flat buffers                 the same, cut from the buffers
//
// Whether an optimizer is wrapped (optimizer.optimizer) follows from what it holds, so that names
// do not show.
//
// Where ids or buffers cannot be matched with parameters beyond doubt, the state stays as stored:
// one rank's under its own keys, several ranks' below "rank_<n>", with a warning.
#include <array>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/format/megatron_torch/model_merge.h"
#include "lib/format/megatron_torch/ranks.h"
#include "lib/format/megatron_torch/tensor_merge.h"

namespace tessera::megatron_torch {

inline constexpr std::string_view kOptimizer = "optimizer";
inline constexpr std::string_view kMasters = "fp32_from_fp16_params";
inline constexpr std::string_view kMasterLeaf = "fp32_param";
/// Option of groups: those of experts that expert-parallel ranks share.
inline constexpr std::string_view kExpertFlag = "is_expert_parallel";
/// The distributed optimizer's flat buffers: key in the file, leaf here.
inline constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kBuffers = {{
    {"param", kMasterLeaf},
    {"exp_avg", "exp_avg"},
    {"exp_avg_sq", "exp_avg_sq"},
}};

/// The types of parameters that have an fp32 master copy.
inline bool is_half(DType dtype) { return dtype == DType::kFloat16 || dtype == DType::kBFloat16; }

/// State of whole parameters, gathered rank by rank, then added to the manifest in one go.
class StateTable {
 public:
  StateTable(Ranks& ranks, Path base) : ranks_(ranks), base_(std::move(base)) {}

  /// One leaf of `fqn` as rank file `file` holds it. `rule_name`: whose cut it has; "" =
  /// replicated.
  void add_tensor(const RankFile& file, const std::string& fqn, const std::string& leaf,
                  const std::string& rule_name, Part part);
  void add_value(const RankFile& file, const std::string& fqn, const std::string& leaf,
                 const Value& value);
  void finish();

 private:
  struct Leaf {
    Path path;
    std::string rule_name;
    std::vector<TpParts> replicas;
    std::map<std::int64_t, std::size_t> sets;  // (pp, ep) -> replicas
    std::uint32_t file = 0;
    Value value;
    bool has_value = false;
  };
  Leaf& leaf(const std::string& fqn, const std::string& name);

  Ranks& ranks_;
  Path base_;
  std::vector<Leaf> leaves_;
  std::map<std::pair<std::string, std::string>, std::size_t> index_;
};

/// Adds everything below `optimizer`. `local`: per rank file, its model dict's tensors in order;
/// `names`: of the whole model, in the order in which groups list their members.
void merge_optimizer(Ranks& ranks, const std::vector<std::vector<LocalTensor>>& local,
                     const std::vector<std::string>& names);

/// distrib_optim.pt of every rank: state of the distributed optimizer. Returns false where no rank
/// has one.
bool merge_buckets(Ranks& ranks, const std::vector<std::vector<LocalTensor>>& local,
                   const Path& base);

/// Adds `value`, one per rank file (null: that file has none), below `path`: once where all ranks
/// hold the same, else each below "rank_<n>".
void add_per_rank(Ranks& ranks, const Path& path, const std::vector<const Value*>& values);

}  // namespace tessera::megatron_torch

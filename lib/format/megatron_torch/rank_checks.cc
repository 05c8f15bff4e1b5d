#include "lib/format/megatron_torch/rank_checks.h"

#include <fmt/format.h>
#include <tessera/base/text.h>
#include <tessera/tensor/dtype.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <utility>

#include "lib/format/megatron_torch/args.h"

namespace tessera::megatron_torch {
namespace {

constexpr std::string_view kIteration = "iteration";
/// Most findings per rank: if the file is of another job, more would add nothing.
constexpr std::size_t kMostFindings = 8;

constexpr std::array<std::string_view, 7> kEnds = {"_parallel_size",   "hidden_size", "vocab_size",
                                                   "_channels",        "_head_dim",   "_lora_rank",
                                                   "intermediate_size"};
constexpr std::array<std::string_view, 33> kNames = {"num_layers",
                                                     "encoder_num_layers",
                                                     "decoder_num_layers",
                                                     "num_layers_per_virtual_pipeline_stage",
                                                     "num_attention_heads",
                                                     "num_query_groups",
                                                     "num_experts",
                                                     "num_moe_experts",
                                                     "num_classes",
                                                     "world_size",
                                                     "data_parallel_size",
                                                     "seq_length",
                                                     "max_position_embeddings",
                                                     "make_vocab_size_divisible_by",
                                                     kTrueVocabulary,
                                                     "swiglu",
                                                     "gated_linear_unit",
                                                     "geglu",
                                                     "quick_geglu",
                                                     "squared_relu",
                                                     "normalization",
                                                     "position_embedding_type",
                                                     "add_bias_linear",
                                                     "add_qkv_bias",
                                                     "untie_embeddings_and_output_weights",
                                                     "group_query_attention",
                                                     "qk_layernorm",
                                                     "multi_latent_attention",
                                                     "moe_grouped_gemm",
                                                     "moe_layer_freq",
                                                     "params_dtype",
                                                     "use_distributed_optimizer",
                                                     kIteration};

/// A value of args as a user would write it.
std::string shown(const Value& value) {
  switch (value.kind()) {
    case Value::Kind::kNone:
      return "None";
    case Value::Kind::kBool:
      return value.as_bool() ? "True" : "False";
    case Value::Kind::kInt:
      return std::to_string(value.as_int());
    case Value::Kind::kString:
      return fmt::format("\"{}\"", printable(value.as_string()));
    case Value::Kind::kDType:
      return std::string(torch_name(value.as_dtype()));
    case Value::Kind::kList:
    case Value::Kind::kTuple: {
      std::string text;
      for (const Value& item : value.as_list()) text += (text.empty() ? "[" : ", ") + shown(item);
      return text.empty() ? "[]" : text + "]";
    }
    default:
      return value.is_number() ? fmt::format("{}", value.as_real()) : "an object";
  }
}

class Checker {
 public:
  Checker(const std::vector<RankRoot>& ranks, Findings& findings)
      : ranks_(ranks), findings_(findings) {}

  void compare_all() {
    const RankRoot* first = nullptr;
    for (const RankRoot& rank : ranks_) {
      if (!args_of(rank).known()) continue;
      if (first != nullptr) compare_args(*first, rank);
      if (first == nullptr) first = &rank;
    }
    for (const RankRoot& rank : ranks_) compare_iteration(ranks_[0], rank);
  }

  void find_swapped() {
    std::vector<std::pair<const RankRoot*, std::int64_t>> numbers;
    for (const RankRoot& rank : ranks_)
      if (const auto number = args_of(rank).integer("rank")) numbers.emplace_back(&rank, *number);
    for (const auto& [a, first] : numbers)
      for (const auto& [b, second] : numbers)
        if (first > second && is_before(a->rank, b->rank))
          return report_swapped(*a, first, *b, second);
  }

 private:
  static Args args_of(const RankRoot& rank) {
    const Value* args = rank.root->find("args");
    return args ? Args(*args) : Args();
  }
  static std::string path_of(const RankRoot& rank) {
    return rank.rank.folder + "/" + std::string(kModelFile);
  }

  void compare_args(const RankRoot& first, const RankRoot& other) {
    std::size_t reported = 0;
    const Args a = args_of(first), b = args_of(other);
    for (const auto& [key, value] : a.attributes()->as_dict()) {
      if (reported == kMostFindings) return;
      if (!key.is_string() || !must_agree(key.as_string())) continue;
      const Value* theirs = b.attributes()->find(key.as_string());
      if (theirs == nullptr || *theirs == value) continue;
      report(first, other, "args." + key.as_string(), value, *theirs);
      ++reported;
    }
  }

  void compare_iteration(const RankRoot& first, const RankRoot& other) {
    const Value *a = first.root->find(kIteration), *b = other.root->find(kIteration);
    if (a && b && !(*a == *b)) report(first, other, std::string(kIteration), *a, *b);
  }

  void report(const RankRoot& first, const RankRoot& other, const std::string& name, const Value& a,
              const Value& b) {
    findings_.error(
        Finding::kRanksDisagree,
        fmt::format("{} is {} in {} and {} in {}: files of different runs or saves",
                    printable(name), shown(a), first.rank.folder, shown(b), other.rank.folder),
        path_of(other));
  }

  /// Along one of the grid's dims: then its process had a lower number.
  static bool is_before(const GridRank& x, const GridRank& y) {
    return x.ep == y.ep && ((x.tp < y.tp && x.pp == y.pp) || (x.tp == y.tp && x.pp < y.pp));
  }

  void report_swapped(const RankRoot& a, std::int64_t first, const RankRoot& b,
                      std::int64_t second) {
    findings_.error(
        Finding::kOtherRanksFile,
        fmt::format("args.rank is {} in {} and {} in {}, where ranks' numbers rise: the "
                    "files lie in each other's folders",
                    first, a.rank.folder, second, b.rank.folder),
        path_of(a));
  }

  const std::vector<RankRoot>& ranks_;
  Findings& findings_;
};

}  // namespace

bool must_agree(std::string_view argument) {
  return std::ranges::find(kNames, argument) != kNames.end() ||
         std::ranges::any_of(kEnds, [&](std::string_view end) { return argument.ends_with(end); });
}

void check_args(const std::vector<RankRoot>& ranks, Findings& findings) {
  if (ranks.size() > 1) Checker(ranks, findings).compare_all();
}

void check_order(const std::vector<RankRoot>& ranks, Findings& findings) {
  if (ranks.size() > 1) Checker(ranks, findings).find_swapped();
}

}  // namespace tessera::megatron_torch

#pragma once
// Which ranks hold which experts, and what their files call them.
//
//   <layer>.deepspeed_moe.experts.deepspeed_experts.<N>.<rest>    N of all experts, here
//   .. the same with N modulo k, in files of ranks                k = experts / ranks, share N / k
//   layer_<L>_expert_<N>_mp_rank_00_model_states.pt               L counts such layers in the model
//
// Pure; immutable once made.
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace tessera::deepspeed {

/// "....deepspeed_experts.3.up.weight": where its number stands.
struct ExpertName {
  std::size_t begin = 0, end = 0;
  std::int64_t number = 0;
};
/// Throws kUnsupported for a name that has none.
ExpertName expert_name(const std::string& name);

struct ExpertPlace {
  std::int64_t layer = 0;   // L
  std::int64_t number = 0;  // N
  std::int64_t share = 0;   // ranks share, share + n, ... of n that share out the experts
  std::string stored;       // the name in files of ranks
};

class ExpertGrid {
 public:
  ExpertGrid() = default;  // without experts
  /// `names`: all of the model's, in its order. Throws kUnsupported where the ranks cannot share a
  /// layer's experts evenly.
  ExpertGrid(std::int64_t ranks, const std::vector<std::string>& names);

  bool empty() const { return places_.empty(); }
  std::int64_t ranks() const { return ranks_; }
  /// Null: no expert's.
  const ExpertPlace* find(const std::string& name) const;
  /// How many experts each layer has.
  const std::vector<std::int64_t>& counts() const { return counts_; }

 private:
  std::int64_t ranks_ = 1;
  std::map<std::string, ExpertPlace> places_;
  std::vector<std::int64_t> counts_;
};

}  // namespace tessera::deepspeed

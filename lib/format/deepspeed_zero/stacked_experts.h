#pragma once
// AutoEP: DeepSpeed puts the experts of a Hugging Face model into stacked matrices, and each rank that
// shares them out holds the rows of its experts.
//
//   <layer>.experts.w1 (experts / shares, f, h)   in files of ranks
//   <layer>.experts.w1 (experts, f, h)            the parameter, here
//   <layer>.experts.w1.<N> (f, h)                 in layer_<L>_expert_<N>_mp_rank_00_model_states.pt
//   <layer>.<gate>.<rest>                         second name of <layer>.router.<rest>
//
// Checked with DeepSpeed 0.19.8 (module_inject/auto_ep_layer.py, runtime/engine.py).
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "lib/state/fields.h"

namespace tessera::deepspeed {

/// What a model file's `ds_autoep_layers` says. Immutable once made.
class StackedExperts {
 public:
  StackedExperts() = default;  // none
  /// `root`: of a model file. Throws kCorrupt, and kUnsupported where ranks hold experts that do not
  /// follow each other.
  explicit StackedExperts(const Field& root);

  bool empty() const { return layers_.empty(); }
  /// How many experts this parameter stacks; nullopt: it is none of theirs.
  std::optional<std::int64_t> count(std::string_view name) const;
  /// "<layer>.experts.w1.<N>": the stacked parameter and N.
  std::optional<std::pair<std::string, std::int64_t>> row(std::string_view name) const;
  /// The name that a second name of a router stands for.
  std::optional<std::string> router(std::string_view name) const;

 private:
  std::map<std::string, std::int64_t, std::less<>> layers_;  // "<layer>": its experts
};

}  // namespace tessera::deepspeed

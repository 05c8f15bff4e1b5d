#pragma once
// How an engine over several tensor-parallel ranks is to cut a parameter: what ds_to_universal
// writes beside it, by the patterns of `universal_checkpoint_info` in the model file.
//
//   tp_replicated_parameter_patterns, parameter_to_average_patterns   nothing
//   parameter_with_2_sub_params_cat_dim_0      cat_dim 0, param_n_sub_params 2
//   parameter_with_row_parallelism_patterns    cat_dim 1
//   none of them                               cat_dim 0
//   vocabulary_parameter_patterns              vocab_tensor True as well
//
// The loader reads these notes and never the patterns. Source: deepspeed/checkpoint/
// ds_to_universal.py and universal_checkpoint.py (0.19.8). Pure.
#include <tessera/state/value.h>

#include <string>
#include <string_view>
#include <vector>

#include "lib/format/deepspeed_universal/name_pattern.h"
#include "lib/format/deepspeed_zero/names.h"

namespace tessera::deepspeed {

class MergeNotes {
 public:
  /// `info`: null or of another kind where the model file has none.
  explicit MergeNotes(const Value* info);

  /// There are patterns, and every one is understood: notes follow from them.
  bool known() const { return known_; }
  /// In the order in which ds_to_universal adds them.
  ValueDict of(const std::string& name) const;
  /// What a parameter's file says beside the tensor is just that: no value of its own, as a writer
  /// has the patterns, too.
  bool explain(const std::string& name, const Value& file) const;

 private:
  using Patterns = std::vector<NamePattern>;
  void take(const Value& info, std::string_view key, Patterns& to);
  static bool any(const Patterns& patterns, const std::string& name);

  Patterns whole_, two_parts_, rows_, vocabulary_;
  std::size_t pattern_bytes_ = 0;
  bool known_ = false;
};

}  // namespace tessera::deepspeed

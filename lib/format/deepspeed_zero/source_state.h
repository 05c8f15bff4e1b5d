#pragma once
// Any state as DeepSpeed sees one: groups of trained parameters with equal leaves, and what is not
// trained. Both writers start from this.
//
//   Manifest --roles, canonical optimizer--> SourceState --> ZeRO files | Universal folder
//
// Refused (kUnsupported, naming the feature and the tensor): several models or optimizers, state
// that has another shape than its parameter, leaves or steps that differ inside a group, masters of
// several types in one group, keys that DeepSpeed keeps for itself. Pure.
#include <tessera/format/format_driver.h>
#include <tessera/state/optim_state.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lib/format/deepspeed_zero/expert_grid.h"
#include "lib/format/deepspeed_zero/files.h"
#include "lib/format/torch_files/grouped_optim.h"

namespace tessera::deepspeed {

struct SourceParameter {
  std::string name;
  Shape shape;
  std::uint32_t weight = kNoTensor;
  std::uint32_t master = kNoTensor;  // the weight where there is no master
  std::size_t number = 0;            // in SourceState::optimizer
  bool has_state = false;            // besides its master
  std::string stored = {};           // what files of ranks call it; "": by its name
  const std::string& stored_name() const { return stored.empty() ? name : stored; }
};

struct SourceGroup {
  std::vector<SourceParameter> parameters;
  /// The state of its first parameter that has any. That of the others is the same (one buffer for
  /// each sharded leaf), but for numbers where each keeps its own.
  GroupedState leaves;
  DType master = DType::kFloat32;
};

/// One name of the model.
struct ModuleEntry {
  enum class Part : std::uint8_t { kTrained, kFrozen, kBuffer, kTied };
  std::string name;
  std::uint32_t tensor = kNoTensor;
  Part part = Part::kTrained;
  std::string stored;              // kTied: the name that is stored
  std::uint32_t fp32 = kNoTensor;  // optim.state.<name>.fp32 of what is not trained
};

struct SourceState {
  std::string_view format;  // id of the target
  std::vector<SourceGroup> groups;
  GroupedOptimizer optimizer;  // without masters; groups as above
  std::vector<ModuleEntry> module;
  ExpertGrid experts;
  std::vector<std::pair<std::string, Value>> module_values;
  Value module_attributes;
  Value fields;   // of the model file
  Value globals;  // of the optimizer file
  Naming naming;
  /// Weights and masters are other bytes: a target without room for both loses the weights.
  bool separate_weights = false;
  bool has_fp32_of_rest = false;  // some of what is not trained has an fp32
  bool fp32_of_all_rest = false;  // all of it has
  std::vector<Note> notes;
  std::vector<LeftOut> left_out;
  std::vector<std::uint32_t> restated;  // weights that are kept as their masters alone
};

/// `one_step_per_group`: steps that differ inside a group are refused.
SourceState source_state(const Manifest& source, const TargetRequest& request,
                         std::string_view format, bool one_step_per_group);

/// True for a leaf that is laid over the ranks as its parameter is; others a buffer has once.
inline bool is_flat(const GroupedLeaf& leaf) { return leaf.form == GroupedLeaf::Form::kSharded; }

}  // namespace tessera::deepspeed

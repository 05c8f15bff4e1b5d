#pragma once
// The files of one tag folder, and what the dictionaries in them say. No tensor byte is read.
//
// Refused by name: tensor parallelism (mp_rank_01 ... without layer files).
#include <tessera/format/format_driver.h>

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "lib/format/deepspeed_zero/names.h"
#include "lib/format/deepspeed_zero/stacked_experts.h"
#include "lib/format/deepspeed_zero/values.h"
#include "lib/format/findings.h"

namespace tessera::deepspeed {

struct Folder {
  std::string prefix;  // "" : the folder itself is the tag folder, else "<tag>/"
  std::string tag;
  std::vector<FileName> models;             // ascending rank
  std::map<std::int64_t, FileName> optims;  // by data-parallel rank
  std::vector<FileName> foreign;            // experts, pipeline stages, other mp ranks
  std::vector<FileInfo> unusable;           // links and the like that are named as data files
  bool is_universal = false;                // has zero/optimizer_state.pt, or a zero/ folder
  bool empty() const { return models.empty() && optims.empty() && foreign.empty(); }
};

/// What lies in `place`: the tag folder, or the folder above it, by its pointer (`latest` or
/// `latest_universal`). `sealed`: the folder above only where our own seal lies beside the pointer;
/// others are found by whoever follows pointers.
Folder find_folder(const Place& place, bool sealed);
/// Whether `file` is one of several of DeepSpeed's files in a folder, by their names.
bool has_other_files(const Directory& folder, const std::string& file);
/// A finding (CK010) for each of `folder.unusable`, which says what it is.
void report_unusable(const Folder& folder, Findings& findings);
/// Files of layers, none of them cut by tensor parallelism: mp_rank_<M> is stage M of a pipeline.
bool is_plain_pipeline(const Folder& folder);
/// One folder for each stage of a pipeline: its model and optimizer files, by stage.
std::map<std::int64_t, Folder> stages_of(const Folder& folder);
/// Files of layers, ascending.
std::vector<FileName> layers_of(const Folder& folder);
/// Whether the folder has files of experts.
bool has_experts(const Folder& folder);
/// kUnsupported for tensor parallelism. `model`: what a model file's root is, where one could be
/// read: it says whether DeepSpeed's own tool can join the parts.
void refuse_tensor_parallel(const Folder& folder, const Value* model);

/// How the source named what DeepSpeed has one name for. Stored as `tessera` in the model file when
/// it is not the default.
struct Naming {
  std::string model_root{kModelRoot};
  std::string optim_root{kOptimRoot};
  std::string fp32_leaf{kFp32Leaf};   // "": the source kept no masters of its own
  std::string counters;               // "tensor" or "value": the form of steps; "": the stage's own
  bool derive_fp32 = true;            // fp32 of what is not trained, as ds_to_universal makes it
  bool module_weights = false;        // weights are those of `module`, not the masters
  bool cast_buffers = true;           // buffers of low precision become fp32, as zero_to_fp32 does
  bool has_groups = true;             // false: the source had none
  std::vector<std::string> added;     // keys that only DeepSpeed needed
  std::vector<std::string> no_state;  // trained, but without state in the source
  /// Trained parameters without elements, which engines keep out of their groups: group, place.
  std::vector<std::tuple<std::string, std::int64_t, std::int64_t>> empty;
  std::vector<NamedTensor> fp32;  // masters of what is not trained
  /// What the source's optimizer kept beside state and groups (FairScale's maps of ids, ...).
  Value optimizer = Value::dict({});

  /// True for a key of the top that a name of the model, the optimizer or the engine begins with.
  bool is_root(std::string_view key) const;
  /// All but `fp32`, as the dict that stands in the model file; None when all is the default.
  Value to_value() const;
};

/// mp_rank_.._model_states.pt and its kin.
struct ModelFile {
  std::uint32_t file = 0;
  std::int64_t dp_rank = -1;
  bool has_module = true;  // false: one stage of a pipeline
  std::vector<NamedTensor> module;
  std::vector<std::pair<std::string, Value>> module_values;  // _extra_state and the like
  Value module_attributes;
  std::set<std::string> buffers;
  bool has_shapes = false;  // false: no ZeRO
  std::vector<std::vector<NamedShape>> param_shapes;
  std::vector<NamedShape> frozen_shapes;
  std::map<std::string, std::uint32_t> frozen;              // fragments
  std::vector<std::pair<std::string, std::string>> shared;  // name -> name that is stored
  StackedExperts stacked;
  Value root;
  Naming naming;
};
ModelFile parse_model_file(const TorchArchive& archive);
/// A dict without the keys that parse_model_file() takes apart.
Value other_state(const ModelFile& model);

/// One rank's optimizer file.
struct OptimFile {
  std::uint32_t file = 0;
  std::int64_t rank = 0;
  std::optional<std::int64_t> stage;          // absent: the bf16 optimizer
  std::vector<std::int64_t> partition_count;  // one number, or one per group (stage 3: sub-group)
  std::vector<std::vector<std::int64_t>> partition_ranks;  // of sub-groups, where they differ
  std::vector<std::uint32_t> fp32;                         // per group (stage 3: sub-group)
  std::vector<std::int64_t> paddings;
  std::vector<std::vector<std::int64_t>> alignment;
  bool elastic = false;
  std::map<std::int64_t, ValueDict> states;  // by id
  std::vector<Value> groups;                 // dicts
  Value base_step;
  Value optimizer;  // the whole dict
  std::int64_t world_size() const;
};
OptimFile parse_optim_file(const TorchArchive& archive);
/// Whether 0-dim tensors of the optimizer's state are numbers in the logical state.
bool counters_are_values(const Naming& naming, std::int64_t stage);
/// ds_config.zero_optimization.round_robin_gradients of a model file.
bool is_round_robin(const Value& root);
/// Names of a group in the order an engine was given them: round robin is undone.
std::vector<std::string> group_order(const std::vector<NamedShape>& stored, bool round_robin,
                                     std::int64_t world_size);
/// Fields that are neither partitions nor recomputed: loss scaler, clip_grad, ...
Value global_state(const Value& optimizer);

}  // namespace tessera::deepspeed

#include "lib/format/deepspeed_zero/source_state.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/state/roles.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <unordered_map>

#include "lib/format/deepspeed_zero/pipeline_layout.h"
#include "lib/format/deepspeed_zero/source_fields.h"
#include "lib/format/deepspeed_zero/target.h"
#include "lib/format/dtype_refusal.h"
#include "lib/format/value_policy.h"
#include "lib/state/same_bytes.h"

namespace tessera::deepspeed {
namespace {

using Part = ModuleEntry::Part;

[[noreturn]] void refuse(std::string message, std::string hint = {}) {
  fail(Code::kUnsupported, std::move(message), std::move(hint));
}

/// Over how many ranks the source shares out its experts; 0: it has no files of experts.
std::int64_t expert_ranks(const Manifest& source) {
  const auto found = source.provenance.find(std::string(kExpertProvenance));
  std::int64_t ranks = 0;
  if (found != source.provenance.end())
    std::from_chars(found->second.data(), found->second.data() + found->second.size(), ranks);
  return ranks;
}

/// Whose engine has files that are not written here: with experts under stage 3, a pipeline whose
/// stages are not known (without ZeRO) or under another stage of ZeRO; "": none. A Universal
/// Checkpoint has no place for which rank holds which part.
std::string unwritten_engine(const Manifest& source, std::string_view format, int stage) {
  const bool zero = format == kZeroFormat;
  if (source.provenance.contains(std::string(kPipelineProvenance))) {
    if (!zero || !kept_layout(source)) return "a DeepSpeed pipeline";
    const std::string& own = source.provenance.at(std::string(kStageProvenance));
    if (own == fmt::format("{}", stage)) return "";
    return fmt::format("a DeepSpeed pipeline (written as stage {}, its own)", own);
  }
  if (expert_ranks(source) == 0) return "";
  if (source.provenance.contains(std::string(kStackedProvenance)))
    return "a DeepSpeed engine with AutoEP";
  if (zero && !source.provenance.contains(std::string(kStageProvenance)))
    return "a DeepSpeed engine with experts and without ZeRO";
  if (zero && stage < 3) return "";
  return zero ? "a DeepSpeed engine with experts (written as stages 1 and 2)"
              : "a DeepSpeed engine with experts";
}

void refuse_engines_of_parts(const Manifest& source, std::string_view format, int stage) {
  const std::string engine = unwritten_engine(source, format, stage);
  if (engine.empty()) return;
  refuse(fmt::format("the state is of {}, whose engine loads other files than are written here",
                     engine),
         "write torch-dcp or torch-save, or the weights with --to hf");
}

class StateBuilder {
 public:
  StateBuilder(const Manifest& source, const TargetRequest& request, std::string_view format,
               bool one_step_per_group)
      : source_(source),
        one_step_(one_step_per_group),
        stage_(target_stage(source, request)),
        roles_(find_roles(source.state)),
        policy_(request, {.opaque = true, .bytes_io = false}, format, out_.notes, out_.left_out) {
    out_.optimizer = GroupedOptimizer(source, request.steps);
    out_.format = format;
  }

  SourceState build() {
    find_roots();
    collect_fields();
    collect_model();
    find_experts();
    collect_groups();
    collect_rest();
    find_parts();
    return std::move(out_);
  }

 private:
  const TensorSpec& spec(std::uint32_t tensor) const { return source_.tensors[tensor].spec; }

  void find_roots() {
    if (roles_.model_roots.empty())
      refuse("there is no model: ZeRO's files hold weights and state together",
             "take the model along, or write torch-dcp or torch-save, which hold any part");
    if (roles_.model_roots.size() > 1) refuse("there are several models", "choose one with --root");
    if (roles_.optimizers.size() > 1)
      refuse_second_optimizer(roles_.optimizers[0].name, roles_.optimizers[1].name, "an engine");
    out_.naming.model_root = roles_.model_roots[0];
    if (!roles_.optimizers.empty()) {
      out_.naming.optim_root = roles_.optimizers[0].name;
      optim_ = canonical_optim_states(source_, roles_).front();
      require_names(source_, *optim_, std::string(kKeepIdsHint));
    }
    for (const ContainerNote& note : source_.state.containers)
      if (note.kind == Value::Kind::kOrderedDict && dotted(note.path) == out_.naming.model_root)
        out_.module_attributes = note.attributes;
  }

  /// Everything that is neither model nor optimizer's state nor groups.
  void collect_fields() {
    SourceFields found = source_fields(source_, roles_, out_.naming, policy_);
    out_.fields = std::move(found.fields);
    out_.globals = std::move(found.globals);
    out_.naming.optimizer = std::move(found.of_optimizer);
  }

  void collect_model() {
    const Value* listed = out_.globals.find(kBufferNames);
    if (listed && listed->kind() == Value::Kind::kList)
      for (const Value& name : listed->as_list())
        if (name.is_string()) buffers_.insert(name.as_string());
    for (std::size_t i = 0; i < source_.state.entries.size(); ++i) {
      const StateEntry& entry = source_.state.entries[i];
      if (roles_.entries[i].role != Role::kModel) continue;
      const std::string& name = roles_.entries[i].fqn;
      if (!entry.value.is_tensor()) {
        if (policy_.keeps(entry)) out_.module_values.emplace_back(name, entry.value);
        continue;
      }
      positions_.emplace(name, out_.module.size());
      out_.module.push_back({name, entry.value.tensor_index(), Part::kFrozen, "", kNoTensor});
    }
  }

  void find_experts() {
    const std::int64_t ranks = expert_ranks(source_);
    if (ranks < 1) return;
    std::vector<std::string> names;
    for (const ModuleEntry& entry : out_.module) names.push_back(entry.name);
    out_.experts = ExpertGrid(ranks, names);
  }

  bool is_buffer(const ModuleEntry& entry) const {
    const StoredTensor& tensor = source_.tensors[entry.tensor];
    if (source_.format == kZeroFormat || source_.format == kUniversalFormat)
      return tensor.kind == TensorKind::kBuffer || !is_floating(tensor.spec.dtype);
    return tensor.kind == TensorKind::kBuffer || buffers_.contains(entry.name) ||
           !is_floating(tensor.spec.dtype) || tensor.spec.shape.rank() == 0;
  }

  void collect_groups() {
    if (optim_ && !optim_->groups.empty()) {
      for (const OptimGroup& group : optim_->groups) add_group(group.members, group.options);
    } else {
      out_.naming.has_groups = false;
      std::vector<std::string> members;
      for (const ModuleEntry& entry : out_.module)
        if (optim_ ? has_own_state(entry.name) : !is_buffer(entry)) members.push_back(entry.name);
      add_group(members, {});
    }
    if (!masters_) out_.naming.fp32_leaf.clear();
    for (const SourceGroup& group : out_.groups)
      for (const SourceParameter& parameter : group.parameters)
        in_tensor(parameter.name, [&] { check_marks(group, parameter); });
  }
  /// A flat buffer holds state and master of all its parameters; one that has neither is marked.
  void check_marks(const SourceGroup& group, const SourceParameter& parameter) {
    const bool has_master = mastered_.contains(parameter.name);
    if (!parameter.has_state && !has_master) {
      if (!group.leaves.empty() || masters_) out_.naming.no_state.push_back(parameter.name);
    } else if (parameter.has_state == group.leaves.empty()) {
      refuse("it has an fp32 master, but not the state that others of its group have");
    } else if (!has_master && masters_) {
      refuse("it has no fp32 master, which others have");
    }
  }
  bool has_own_state(const std::string& name) const {
    const OptimParameter* found = optim_->find(name);
    return found && !(found->leaves.size() == 1 && is_master_leaf(found->leaves[0].name));
  }

  void add_group(const std::vector<std::string>& members, const ValueDict& options) {
    SourceGroup group;
    OptimizerGroup listed{options, {}};
    for (const std::string& name : members) {
      const auto at = positions_.find(name);
      if (at == positions_.end()) refuse_unknown_parameter(name);
      ModuleEntry& entry = out_.module[at->second];
      if (entry.part == Part::kTrained)
        refuse(fmt::format("\"{}\" is listed twice in the groups", printable(name)));
      entry.part = Part::kTrained;
      SourceParameter parameter;
      parameter.name = name;
      if (const ExpertPlace* expert = out_.experts.find(name)) parameter.stored = expert->stored;
      parameter.weight = parameter.master = entry.tensor;
      parameter.shape = spec(entry.tensor).shape;
      parameter.number = out_.optimizer.add_parameter(name, parameter.shape);
      listed.members.push_back(parameter.number);
      const OptimParameter* state = optim_ ? optim_->find(name) : nullptr;
      if (state) in_tensor(name, [&] { take_state(*state, parameter); });
      group.parameters.push_back(std::move(parameter));
    }
    out_.optimizer.add_group(std::move(listed));
    unite(group);
    check_masters(group);
    out_.groups.push_back(std::move(group));
  }

  void take_state(const OptimParameter& state, SourceParameter& parameter) {
    for (const OptimLeaf& leaf : state.leaves) {
      const Value& value = source_.state.entries[leaf.entry].value;
      GroupedLeaf made{
          leaf.name, out_.optimizer.form_of(parameter.number, leaf.name, value), {}, value};
      if (leaf.name == kStep && value.is_tensor()) made.form = GroupedLeaf::Form::kScalar;
      if (made.form == GroupedLeaf::Form::kTensor)
        refuse(fmt::format("state \"{}\" has shape {}, its parameter {}: ZeRO cuts them alike",
                           leaf.name, spec(leaf.tensor).shape.to_string(),
                           parameter.shape.to_string()));
      if (is_flat(made) && is_master_leaf(leaf.name)) {
        take_master(leaf, parameter);
        continue;
      }
      out_.optimizer.add_leaf(parameter.number, std::move(made));
      parameter.has_state = true;
    }
  }
  void take_master(const OptimLeaf& leaf, SourceParameter& parameter) {
    if (mastered_.contains(parameter.name)) refuse("two fp32 masters of one parameter");
    if (masters_++ == 0) out_.naming.fp32_leaf = leaf.name;
    if (leaf.name != out_.naming.fp32_leaf)
      refuse(fmt::format("masters are named \"{}\" and \"{}\"", out_.naming.fp32_leaf, leaf.name));
    parameter.master = leaf.tensor;
    mastered_.insert(parameter.name);
  }
  void unite(SourceGroup& group) {
    std::vector<std::size_t> with_state;
    for (const SourceParameter& parameter : group.parameters)
      if (parameter.has_state) with_state.push_back(parameter.number);
    if (with_state.empty()) return;
    if (const auto apart = out_.optimizer.unite(with_state, one_step_))
      refuse(apart->why, apart->number ? one_each_hint() : "");
    group.leaves = out_.optimizer.state(with_state.front());
  }

  /// A Universal Checkpoint keeps one per parameter, but for stage 3.
  std::string one_each_hint() const {
    constexpr std::string_view kStage = "--zero-stage 2";
    if (out_.format == kUniversalFormat)
      return fmt::format("add {}: it keeps one per parameter", kStage);
    return fmt::format("write deepspeed-universal{}, which keeps one per parameter",
                       stage_ == 3 ? fmt::format(" with {}", kStage) : "");
  }

  void check_masters(SourceGroup& group) {
    if (group.parameters.empty()) return;
    group.master = spec(group.parameters[0].master).dtype;
    for (const SourceParameter& parameter : group.parameters) {
      const StoredTensor& master = source_.tensors[parameter.master];
      if (!is_floating(master.spec.dtype) || is_sub_byte(master.spec.dtype))
        refuse_dtype(master, out_.format);
      if (master.spec.dtype != group.master)
        refuse(fmt::format("\"{}\" is {}, \"{}\" of the same group {}: a flat buffer has one type",
                           printable(group.parameters[0].name), torch_name(group.master),
                           printable(parameter.name), torch_name(master.spec.dtype)),
               one_type_hint(source_.tensors[group.parameters[0].master], master));
      out_.separate_weights |= !same_bytes(source_, parameter.weight, parameter.master);
    }
  }

  /// State that no group lists: here only masters differ from what is not trained.
  void collect_rest() {
    if (!optim_) return;
    for (const OptimParameter& parameter : optim_->parameters) {
      const auto at = positions_.find(parameter.fqn);
      const bool trained = at != positions_.end() && out_.module[at->second].part == Part::kTrained;
      if (trained || parameter.leaves.empty()) continue;
      const OptimLeaf& leaf = parameter.leaves[0];
      if (parameter.leaves.size() > 1 || !is_master_leaf(leaf.name) || leaf.tensor == kNoTensor ||
          at == positions_.end())
        refuse_unlisted_parameter(parameter.fqn);
      out_.module[at->second].fp32 = leaf.tensor;
    }
  }

  /// What is not trained: buffers, second names of others, frozen parameters.
  void find_parts() {
    std::map<std::pair<std::uint32_t, std::uint64_t>, std::vector<std::size_t>> by_place;
    const auto place = [&](std::uint32_t tensor) {
      const StoredTensor& stored = source_.tensors[tensor];
      if (stored.chunk_count == 0) return std::pair<std::uint32_t, std::uint64_t>{};
      const Source& first = source_.source(stored, 0);
      return std::pair{first.file, first.offset};
    };
    for (std::size_t i = 0; i < out_.module.size(); ++i)
      if (out_.module[i].part == Part::kTrained)
        by_place[place(out_.module[i].tensor)].push_back(i);
    std::size_t rest = 0, with_fp32 = 0;
    for (std::size_t i = 0; i < out_.module.size(); ++i) {
      ModuleEntry& entry = out_.module[i];
      if (entry.part == Part::kTrained) continue;
      ++rest;
      with_fp32 += entry.fp32 != kNoTensor;
      if (is_buffer(entry)) {
        entry.part = Part::kBuffer;
        const DType dtype = spec(entry.tensor).dtype;
        if (is_floating(dtype) && dtype != DType::kFloat32) out_.naming.cast_buffers = false;
        continue;
      }
      auto& same_place = by_place[place(entry.tensor)];
      for (const std::size_t other : same_place)
        if (entry.part == Part::kFrozen && spec(entry.tensor).shape.numel() > 0 &&
            same_bytes(source_, entry.tensor, out_.module[other].tensor)) {
          entry.part = Part::kTied;
          entry.stored = out_.module[other].name;
        }
      if (entry.part == Part::kFrozen) same_place.push_back(i);
    }
    out_.has_fp32_of_rest = with_fp32 > 0;
    out_.fp32_of_all_rest = with_fp32 == rest;
  }

  const Manifest& source_;
  bool one_step_;
  int stage_;
  Roles roles_;
  SourceState out_;
  ValuePolicy policy_;
  std::optional<OptimState> optim_;
  std::unordered_map<std::string, std::size_t> positions_;  // in out_.module
  std::set<std::string> buffers_;
  std::set<std::string> mastered_;  // trained, with a master of their own
  std::size_t masters_ = 0;
};

}  // namespace

SourceState source_state(const Manifest& source, const TargetRequest& request,
                         std::string_view format, bool one_step_per_group) {
  refuse_engines_of_parts(source, format, target_stage(source, request));
  if (request.values != KeepPolicy::kDrop)
    refuse_split_lists(source.state, find_roles(source.state), format);
  return StateBuilder(source, request, format, one_step_per_group).build();
}

}  // namespace tessera::deepspeed

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include "lib/format/deepspeed_universal/merge_notes.h"
#include "lib/format/deepspeed_universal/parts.h"
#include "lib/format/deepspeed_zero/optim_writer.h"
#include "lib/format/deepspeed_zero/target.h"

namespace tessera::deepspeed {
namespace {

/// Names become folders.
void check_folder_name(std::string_view name) {
  constexpr std::size_t kMostNameBytes = 255;
  const bool plain = !name.empty() && name.size() <= kMostNameBytes && name != "." &&
                     name != ".." &&
                     name.find_first_of(std::string_view("/\0", 2)) == std::string_view::npos;
  if (!plain)
    fail(Code::kUnsupported,
         fmt::format("\"{}\" cannot name a folder, which a Universal Checkpoint has for every "
                     "parameter",
                     printable(name)));
}

class UniversalWriter {
 public:
  UniversalWriter(const Manifest& source, SourceState& state, const Target& target)
      : source_(source),
        state_(state),
        target_(target),
        merge_(state.fields.find(kUniversalInfo)),
        plan_(source) {}

  OutputPlan write() {
    const bool stage_3 = target_.stage == 3;
    for (const SourceGroup& group : state_.groups)
      for (const SourceParameter& parameter : group.parameters) add_parameter(parameter);
    if (!stage_3) add_rest();
    plan_.add(optimizer_file());
    plan_.add(model_file(source_, state_, target_, stage_3 ? 0 : -1));
    plan_.add_literal(std::string(kLatestUniversal),
                      target_.folder.substr(0, target_.folder.size() - 1));
    plan_.notes() = std::move(state_.notes);
    plan_.left_out() = std::move(state_.left_out);
    if (!stage_3 && !merge_.known() && !state_.globals.find(kUniversalNotes)) note_one_part();
    return plan_.finish(std::string(kUniversalFormat));
  }

 private:
  std::string file_of(const std::string& name, const std::string& leaf) const {
    return target_.folder + std::string(kZeroFolder) + "/" + name + "/" + leaf + ".pt";
  }

  /// An engine over more tensor-parallel ranks cuts along `cat_dim`, whatever the layer is.
  void note_one_part() {
    plan_.notes().push_back(
        {Finding::kNoCutPatterns, Severity::kInfo,
         "tensor parallelism 1 is assumed: every parameter has cat_dim 0, along which an engine "
         "over more ranks would cut it, whatever its layer; load it with tensor parallelism 1",
         "", ""});
  }

  /// Stage 3 writes a bare flat tensor, the others a dict.
  void add_tensor(const std::string& name, const std::string& leaf, std::uint32_t tensor,
                  bool trained) {
    ArchiveDraft builder(source_, draft_rules(state_));
    if (target_.stage == 3) {
      plan_.add(builder.finish(
          file_of(name, leaf),
          builder.reshaped(tensor, Shape{source_.tensors.at(tensor).spec.shape.numel()})));
      return;
    }
    ValueDict root;
    const Value* noted = notes_of(name);
    if (trained && !noted && merge_.known())
      root = merge_.of(name);
    else if (trained && !(noted && noted->find(kCatDim)))
      root.emplace_back(text(kCatDim), Value::integer(0));
    if (noted)
      for (const auto& [key, value] : noted->as_dict()) root.emplace_back(key, builder.take(value));
    root.emplace_back(text(kParam), builder.whole(tensor));
    Value dict = Value::dict(std::move(root));
    plan_.add(builder.finish(file_of(name, leaf), std::move(dict)));
  }
  const Value* notes_of(const std::string& name) const {
    const Value* all = state_.globals.find(kUniversalNotes);
    const Value* mine = all ? all->find(name) : nullptr;
    return mine && mine->is_dict() ? mine : nullptr;
  }

  void add_parameter(const SourceParameter& parameter) {
    const std::string& name = parameter.name;
    check_folder_name(name);
    add_tensor(name, std::string(kFp32Leaf), parameter.master, true);
    if (!parameter.has_state) return;
    for (const GroupedLeaf& leaf : state_.optimizer.state(parameter.number)) {
      check_folder_name(leaf.name);
      if (is_flat(leaf)) add_tensor(name, leaf.name, leaf.tensors[0], true);
    }
    for (const GroupedLeaf& leaf : state_.optimizer.state(parameter.number)) {
      if (is_flat(leaf) || target_.stage == 3) continue;
      ArchiveDraft builder(source_, draft_rules(state_));
      Value scalar = scalar_value(builder, leaf);
      plan_.add(builder.finish(file_of(name, leaf.name), std::move(scalar)));
    }
  }

  /// Masters of what is not trained.
  void add_rest() {
    for (const ModuleEntry& entry : state_.module) {
      if (entry.fp32 == kNoTensor || entry.part == ModuleEntry::Part::kTrained) continue;
      check_folder_name(entry.name);
      add_tensor(entry.name, std::string(kFp32Leaf), entry.fp32, false);
    }
  }

  ArchiveFile optimizer_file() {
    ArchiveDraft builder(source_, draft_rules(state_));
    ValueDict root;
    ValueDict globals;
    add_globals(builder, state_, globals);
    for (auto& [key, value] : globals)
      if (!(key.is_string() && key.as_string() == kUniversalNotes))
        root.emplace_back(std::move(key), std::move(value));
    root.emplace_back(text(kZeroStage), Value::integer(target_.stage));
    if (target_.stage == 3) {
      root.emplace_back(text(kPartitionCount), Value::integer(target_.world_size));
      root.emplace_back(text(kOptimizerStateDict), shared_state(builder));
    } else {
      add_partitions(root);
    }
    root.emplace_back(text(kParamGroups), param_groups(builder, state_, target_));
    return builder.finish(
        target_.folder + std::string(kZeroFolder) + "/" + std::string(kOptimizerStateFile),
        Value::dict(std::move(root)));
  }
  void add_partitions(ValueDict& root) const {
    const ValueList zeros(target_.buffers.size(), Value::integer(0));
    const ValueList ones(target_.buffers.size(), Value::integer(1));
    root.emplace_back(text(kGroupPaddings), Value::list(zeros));
    root.emplace_back(text(kPartitionCount), Value::list(ones));
    root.emplace_back(text(kDsVersion), *state_.fields.find(kDsVersion));
  }
  Value shared_state(ArchiveDraft& builder) {
    ValueDict states;
    for (std::size_t b = 0; b < target_.buffers.size(); ++b) {
      ValueDict leaves;
      for (const GroupedLeaf& leaf : state_.groups[target_.buffers[b].group].leaves)
        if (!is_flat(leaf))
          leaves.emplace_back(Value::string(leaf.name), scalar_value(builder, leaf));
      if (!leaves.empty())
        states.emplace_back(Value::integer(static_cast<std::int64_t>(b)),
                            Value::dict(std::move(leaves)));
    }
    Value held = Value::dict(std::move(states));
    return Value::dict({{text(kState), std::move(held)},
                        {text(kParamGroups), param_groups(builder, state_, target_)}});
  }

  const Manifest& source_;
  SourceState& state_;
  const Target& target_;
  MergeNotes merge_;
  ArchivePlanBuilder plan_;
};

}  // namespace

OutputPlan plan_universal(const Manifest& source, const TargetRequest& request) {
  if (request.world_size.value_or(1) > 1 || (request.mesh && request.mesh->world_size() > 1))
    fail(Code::kUnsupported, "deepspeed-universal holds one rank, for any number to load",
         "leave --world-size out, or use --to deepspeed-zero or torch-dcp");
  const bool stage_3 = target_stage(source, request) == 3;
  SourceState state = source_state(source, request, kUniversalFormat, stage_3);
  const Target target = make_target(source, request, state, "_universal");
  complete(source, state, target);
  if (!stage_3) {  // its folder holds them
    state.naming.derive_fp32 = true;
    state.naming.fp32.clear();
  }
  return UniversalWriter(source, state, target).write();
}

}  // namespace tessera::deepspeed

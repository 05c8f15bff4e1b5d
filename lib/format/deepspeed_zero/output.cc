#include "lib/format/deepspeed_zero/output.h"

#include "lib/format/deepspeed_zero/optim_writer.h"
#include "lib/format/deepspeed_zero/partition.h"
#include "lib/format/deepspeed_zero/pipeline_output.h"
#include "lib/format/torch_files/flat_tensors.h"

namespace tessera::deepspeed {
namespace {

/// Whose momentum a rank keeps whole for every parameter that its part touches (whole_leaves.h).
bool is_muon(const SourceState& state, std::size_t group) {
  return flag_in(Value::dict(state.optimizer.groups()[group].options), kUseMuon).value_or(false);
}

void note_muon(SourceState& state, const Target& target) {
  bool any = false;
  for (std::size_t g = 0; g < state.optimizer.groups().size(); ++g) any = any || is_muon(state, g);
  if (!any || target.stage == 3) return;
  state.notes.push_back(
      {Finding::kNone, Severity::kInfo,
       "Muon's momentum_buffer is written as DeepSpeed keeps it under stages 1 and "
       "2: in each rank's file whole for every parameter that its part touches",
       "", ""});
}

/// The optimizer file of one rank.
class RankWriter {
 public:
  RankWriter(const Manifest& source, const SourceState& state, const Target& target,
             std::int64_t rank)
      : source_(source),
        state_(state),
        target_(target),
        rank_(rank),
        builder_(source, draft_rules(state)) {}

  ArchiveFile write() {
    ValueDict optimizer;
    const auto add = [&optimizer](std::string_view key, Value value) {
      optimizer.emplace_back(text(key), std::move(value));
    };
    const bool stage_3 = target_.stage == 3;
    add_globals(builder_, state_, optimizer);
    add(stage_3 ? kOptimizerStateDict : kBaseState, base_state());
    add(stage_3 ? kFp32FlatGroups : kFp32Groups, masters());
    add(kZeroStage, Value::integer(target_.stage));
    if (stage_3) {
      add(kPartitionCount, Value::integer(target_.world_size));
    } else {
      add_partitions(optimizer);
    }
    ValueDict root{{text(kOptimizerStateDict), Value::dict(std::move(optimizer))}};
    for (const std::string_view key : {kDsConfig, kDsVersion})
      if (const Value* field = state_.fields.find(key))
        root.emplace_back(text(key), builder_.take(*field));
    return builder_.finish(
        target_.folder + optim_file_name(rank_, target_.bf16, target_.pipeline_stage),
        Value::dict(std::move(root)));
  }

 private:
  const SourceGroup& group_of(const Target::Buffer& buffer) const {
    return state_.groups[buffer.group];
  }
  FlatLayout layout_of(const Target::Buffer& buffer) const {
    std::vector<FlatParameter> members;
    for (const std::size_t i : members_of(buffer))
      members.push_back(
          {group_of(buffer).parameters[i].stored_name(), group_of(buffer).parameters[i].shape});
    return FlatLayout(members, target_.world_size / buffer.shares, 1, kPartMultiple);
  }
  /// What this rank holds a part of, and which part.
  std::span<const std::size_t> members_of(const Target::Buffer& buffer) const {
    return buffer.of_share(rank_ % buffer.shares);
  }
  std::int64_t part_of(const Target::Buffer& buffer) const { return rank_ / buffer.shares; }

  Value base_state() {
    ValueDict states;
    for (std::size_t b = 0; b < target_.buffers.size(); ++b) {
      const SourceGroup& group = group_of(target_.buffers[b]);
      if (group.leaves.empty()) continue;
      ValueDict leaves;
      for (const GroupedLeaf& leaf : group.leaves)
        if (!is_flat(leaf))
          leaves.emplace_back(Value::string(leaf.name), scalar_value(builder_, leaf));
      for (std::size_t l = 0; l < group.leaves.size(); ++l)
        if (is_flat(group.leaves[l]))
          leaves.emplace_back(Value::string(group.leaves[l].name),
                              flat_leaf(target_.buffers[b], l));
      states.emplace_back(Value::integer(static_cast<std::int64_t>(b)),
                          Value::dict(std::move(leaves)));
    }
    return Value::dict({{text(kState), Value::dict(std::move(states))},
                        {text(kParamGroups), param_groups(builder_, state_, target_)}});
  }

  Value flat_leaf(const Target::Buffer& buffer, std::size_t leaf) {
    const std::uint32_t first = group_of(buffer).leaves[leaf].tensors[0];
    const auto tensor_of = [&](const SourceParameter& p) {
      return p.has_state ? state_.optimizer.state(p.number)[leaf].tensors[0] : kNoTensor;
    };
    const DType dtype = source_.tensors[first].spec.dtype;
    if (keeps_whole(buffer, group_of(buffer).leaves[leaf]))
      return touched(buffer, dtype, tensor_of);
    return flat(buffer, dtype, tensor_of, false);
  }

  bool keeps_whole(const Target::Buffer& buffer, const GroupedLeaf& leaf) const {
    return target_.stage < 3 && leaf.name == kMomentum && is_muon(state_, buffer.group);
  }
  /// Every parameter that this rank's part of the buffer touches, whole.
  template <class TensorOf>
  Value touched(const Target::Buffer& buffer, DType dtype, const TensorOf& tensor_of) {
    std::vector<FlatPiece> pieces;
    std::int64_t numel = 0;
    for (const FlatPiece& piece : layout_of(buffer).pieces_of(part_of(buffer))) {
      const std::size_t number = members_of(buffer)[piece.parameter];
      const std::int64_t whole = group_of(buffer).parameters[number].shape.numel();
      pieces.push_back({piece.parameter, 0, whole, numel});
      numel += whole;
    }
    return builder_.flat(
        dtype, numel, flat_storage(source_, pieces, numel, dtype, [&](std::size_t parameter) {
          return tensor_of(group_of(buffer).parameters[members_of(buffer)[parameter]]);
        }));
  }

  Value masters() {
    ValueList out;
    for (const Target::Buffer& buffer : target_.buffers)
      out.push_back(flat(
          buffer, group_of(buffer).master, [](const SourceParameter& p) { return p.master; },
          true));
    return Value::list(std::move(out));
  }

  /// This rank's part of a flat buffer. `stripped`: without the padding at its end (stage 3 keeps
  /// it always).
  template <class TensorOf>
  Value flat(const Target::Buffer& buffer, DType dtype, const TensorOf& tensor_of, bool stripped) {
    std::vector<FlatPiece> pieces;
    std::int64_t numel = 0;
    if (target_.stage == 3) {
      for (std::size_t i = 0; i < buffer.parameters.size(); ++i) {
        const Shape& shape = group_of(buffer).parameters[buffer.parameters[i]].shape;
        const Slice slice = slice_of(shape.numel(), target_.world_size, rank_);
        if (slice.begin < slice.end) pieces.push_back({i, slice.begin, slice.end, numel});
        numel += slice.room;
      }
    } else {
      const FlatLayout layout = layout_of(buffer);
      pieces = layout.pieces_of(part_of(buffer));
      numel = layout.shard_numel() - (stripped ? layout.tail_padded(part_of(buffer)) : 0);
    }
    return builder_.flat(
        dtype, numel, flat_storage(source_, pieces, numel, dtype, [&](std::size_t parameter) {
          return tensor_of(group_of(buffer).parameters[members_of(buffer)[parameter]]);
        }));
  }

  void add_partitions(ValueDict& out) const {
    ValueList paddings, counts, mappings;
    for (const Target::Buffer& buffer : target_.buffers) {
      const FlatLayout layout = layout_of(buffer);
      paddings.push_back(Value::integer(layout.tail_padded(part_of(buffer))));
      counts.push_back(Value::integer(target_.world_size / buffer.shares));
      ValueDict mapping;
      for (const FlatPiece& piece : layout.pieces_of(part_of(buffer)))
        mapping.emplace_back(Value::string(layout.segments()[piece.parameter].fqn),
                             fragment_address(piece.numel(), piece.offset));
      mappings.push_back(Value::ordered_dict(std::move(mapping), Value()));
    }
    out.emplace_back(text(kGroupPaddings), Value::list(std::move(paddings)));
    out.emplace_back(text(kPartitionCount), Value::list(std::move(counts)));
    out.emplace_back(text(kDsVersion), *state_.fields.find(kDsVersion));
    out.emplace_back(text(kSliceMappings), Value::list(std::move(mappings)));
  }

  const Manifest& source_;
  const SourceState& state_;
  const Target& target_;
  std::int64_t rank_;
  ArchiveDraft builder_;
};

/// The files of an engine, or of one stage of a pipeline.
void add_files(const Manifest& source, const SourceState& state, const Target& target,
               ArchivePlanBuilder& plan) {
  if (target.stage < 3) plan.add(model_file(source, state, target, -1));
  for (std::int64_t rank = 0; rank < target.world_size; ++rank) {
    if (target.stage == 3) plan.add(model_file(source, state, target, rank));
    plan.add(RankWriter(source, state, target, rank).write());
  }
}

}  // namespace

OutputPlan plan_zero(const Manifest& source, const TargetRequest& request) {
  SourceState state = source_state(source, request, kZeroFormat, true);
  const Target target = make_target(source, request, state, "");
  complete(source, state, target);
  note_muon(state, target);
  ArchivePlanBuilder plan(source);
  if (const auto layout = kept_layout(source)) {
    for (const Target& stage : stage_targets(state, target, *layout))
      add_files(source, state, stage, plan);
    for (ArchiveFile& file : layer_files(source, state, target, *layout)) plan.add(std::move(file));
  } else {
    add_files(source, state, target, plan);
    for (ArchiveFile& file : expert_files(source, state, target)) plan.add(std::move(file));
  }
  plan.add_literal(std::string(kLatest), target.folder.substr(0, target.folder.size() - 1));
  plan.notes() = std::move(state.notes);
  plan.left_out() = std::move(state.left_out);
  plan.restated() = std::move(state.restated);
  return plan.finish(std::string(kZeroFormat));
}

}  // namespace tessera::deepspeed

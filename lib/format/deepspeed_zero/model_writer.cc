#include "lib/format/deepspeed_zero/model_writer.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include <algorithm>
#include <map>
#include <unordered_map>

#include "lib/format/data_parallel.h"
#include "lib/format/deepspeed_zero/partition.h"
#include "lib/format/deepspeed_zero/pipeline_layout.h"
#include "lib/format/deepspeed_zero/state_assembler.h"
#include "lib/format/deepspeed_zero/target.h"
#include "lib/state/same_bytes.h"

namespace tessera::deepspeed {
namespace {

using Part = ModuleEntry::Part;

constexpr std::int64_t kSubGroupNumel = 1'000'000'000;  // DeepSpeed's default
constexpr std::string_view kVersion = "0.19.8";         // whose files these are
constexpr std::string_view kUniversalSuffix = "_universal";

const Value* zero_option(const SourceState& state, std::string_view key) {
  const Value* config = state.fields.find(kDsConfig);
  const Value* zero = config ? config->find("zero_optimization") : nullptr;
  return zero ? zero->find(key) : nullptr;
}

/// The parameters of a group, those of experts by the ranks that share them.
Target::Buffer share_out(const SourceState& state, std::size_t group,
                         const std::vector<std::size_t>& members) {
  const auto& parameters = state.groups[group].parameters;
  const auto place = [&](std::size_t i) { return state.experts.find(parameters[i].name); };
  const auto experts = std::ranges::count_if(members, [&](std::size_t i) { return place(i); });
  Target::Buffer buffer{group, members, 1};
  if (experts == 0) return buffer;
  if (static_cast<std::size_t>(experts) != members.size())
    fail(Code::kUnsupported,
         fmt::format("group {} of the optimizer holds parameters of experts and others", group));
  buffer.shares = state.experts.ranks();
  std::ranges::stable_sort(buffer.parameters, {}, [&](std::size_t i) { return place(i)->share; });
  const auto first = buffer.of_share(0);
  for (std::int64_t share = 0; share < buffer.shares; ++share) {
    const auto own = buffer.of_share(share);
    for (std::size_t i = 0; i < own.size(); ++i) {
      const SourceParameter& parameter = parameters[own[i]];
      const SourceParameter& alike = parameters[first[i]];
      if (place(own[i])->share == share && parameter.stored == alike.stored &&
          parameter.shape == alike.shape)
        continue;
      fail(Code::kUnsupported, fmt::format("experts of one layer differ: \"{}\" and \"{}\"",
                                           printable(alike.name), printable(parameter.name)));
    }
  }
  return buffer;
}

std::vector<Target::Buffer> make_buffers(const SourceState& state, const Target& target) {
  std::vector<Target::Buffer> out;
  const Value* robin = zero_option(state, "round_robin_gradients");
  const bool round_robin = robin && robin->kind() == Value::Kind::kBool && robin->as_bool();
  const Value* size = zero_option(state, "sub_group_size");
  const std::int64_t sub_group =
      size && size->is_number() && size->as_real() >= 1 && size->as_real() < 1e18
          ? static_cast<std::int64_t>(size->as_real())
          : kSubGroupNumel;
  for (std::size_t g = 0; g < state.groups.size(); ++g) {
    std::vector<std::size_t> members;
    std::vector<std::int64_t> rooms;
    for (std::size_t i = 0; i < state.groups[g].parameters.size(); ++i) {
      const std::int64_t numel = state.groups[g].parameters[i].shape.numel();
      if (numel == 0) continue;
      members.push_back(i);
      rooms.push_back(slice_of(numel, target.world_size, 0).room);
    }
    if (target.stage < 3) {
      Target::Buffer buffer = share_out(state, g, members);
      if (round_robin) {
        const auto order = round_robin_order(members.size(), target.world_size);
        for (std::size_t i = 0; i < order.size(); ++i) buffer.parameters[i] = members[order[i]];
      }
      out.push_back(std::move(buffer));
      continue;
    }
    auto next = members.begin();
    for (const std::size_t count : sub_groups(rooms, sub_group)) {
      const auto end = next + static_cast<std::ptrdiff_t>(count);
      out.push_back({g, {next, end}, 1});
      next = end;
    }
  }
  return out;
}

std::string tag_of(const Manifest& source, const SourceState& state, std::string_view suffix) {
  const auto known = source.provenance.find(std::string(kTagProvenance));
  std::string tag = known == source.provenance.end() ? "" : known->second;
  if (tag.ends_with(kUniversalSuffix)) tag.resize(tag.size() - kUniversalSuffix.size());
  if (tag.empty() || tag.starts_with('.') || tag.find('/') != std::string::npos) {
    const Value* steps = state.fields.find(kGlobalSteps);
    tag = fmt::format("global_step{}", steps && steps->is_int() ? steps->as_int() : 0);
  }
  return tag + std::string(suffix);
}

/// What the module of stages 0 to 2 holds under a name that is not trained.
std::uint32_t module_tensor(const Manifest& source, const ModuleEntry& entry) {
  const bool twice = entry.part == Part::kTied || entry.part == Part::kFrozen;
  if (!twice || entry.fp32 == kNoTensor || same_stored(source, entry.tensor, entry.fp32))
    return entry.tensor;
  return entry.fp32;
}

void add_missing(Value& dict, std::string_view prefix, std::string_view key, Value value,
                 std::vector<std::string>& added) {
  if (dict.find(key)) return;
  ValueDict entries = dict.as_dict();
  entries.emplace_back(text(key), std::move(value));
  dict = Value::dict(std::move(entries));
  added.push_back(std::string(prefix) + std::string(key));
}

void add_engine_fields(SourceState& state, const Target& target) {
  std::vector<std::string>& added = state.naming.added;
  const auto zero = Value::integer(0);
  add_missing(state.fields, "", "lr_scheduler", Value(), added);
  add_missing(state.fields, "", kSkippedSteps, zero, added);
  add_missing(state.fields, "", kGlobalSteps, zero, added);
  const Value config = Value::dict(
      {{text("zero_optimization"), Value::dict({{text("stage"), Value::integer(target.stage)}})}});
  add_missing(state.fields, "", kDsConfig, config, added);
  add_missing(state.fields, "", kDsVersion, text(kVersion), added);
  if (!state.experts.empty()) {
    ValueList counts;
    for (const std::int64_t count : state.experts.counts()) counts.push_back(Value::integer(count));
    add_missing(state.fields, "", kNumExperts, Value::list(std::move(counts)), added);
  }

  const std::string globals = std::string(kGlobalsRoot) + ".";
  add_missing(state.globals, globals, kLossScaler,
              default_scaler(state.globals, state.fields.find(kDsConfig)), added);
  add_missing(state.globals, globals, "dynamic_loss_scale", Value::boolean(false), added);
  add_missing(state.globals, globals, "overflow", Value::boolean(false), added);
  const bool buffers = std::ranges::any_of(
      state.module, [](const ModuleEntry& entry) { return entry.part == Part::kBuffer; });
  if (buffers && !state.globals.find(kBufferNames))
    added.push_back(globals + std::string(kBufferNames));
}

/// Files of experts and of layers hold weights alone, so that what else the model file says of a
/// parameter has no place.
void check_parts(const Manifest& source, const SourceState& state) {
  const bool pipeline = kept_layout(source).has_value();
  if (state.separate_weights && (pipeline || !state.experts.empty()))
    fail(Code::kUnsupported,
         fmt::format("weights beside fp32 masters of other values: files of {} do not say whose "
                     "they are",
                     pipeline ? "layers" : "experts"),
         "take weights from the masters with --prefer master");
  if (pipeline && is_round_robin(state.fields))
    fail(Code::kUnsupported, "a pipeline whose parameters are dealt out (round_robin_gradients)");
  for (const ModuleEntry& entry : state.module)
    if (state.experts.find(entry.name) && entry.part != Part::kTrained)
      in_tensor(entry.name, [] {
        fail(Code::kUnsupported, "an expert that is not trained: DeepSpeed names it by its rank");
      });
}

class ModelFileWriter {
 public:
  ModelFileWriter(const Manifest& source, const SourceState& state, const Target& target,
                  std::int64_t rank)
      : source_(source),
        state_(state),
        target_(target),
        rank_(rank),
        builder_(source, draft_rules(state)) {}

  ArchiveFile write() {
    ValueDict root;
    const auto add = [&root](std::string_view key, Value value) {
      root.emplace_back(text(key), std::move(value));
    };
    const bool pipeline = target_.pipeline_stages > 0;
    add(kModule, pipeline ? Value() : module());
    add(kBufferNames, buffer_names());
    add(kOptimizer, Value());
    add(kParamShapes, param_shapes());
    add_frozen(root);
    add(kSharedParams, pipeline ? Value::dict({}) : shared());
    const auto stages = Value::integer(std::max<std::int64_t>(target_.pipeline_stages, 1));
    add(kDpWorldSize, Value::integer(target_.world_size));
    add(kMpWorldSize, stages);
    add(kParallelDimensions,
        Value::dict({{text("pp_degree"), stages}, {text("tp_degree"), Value::integer(1)}}));
    const Value fields = builder_.take(state_.fields);
    for (const auto& field : fields.as_dict()) root.push_back(field);
    if (Value naming = this->naming();
        !naming.is_none() && rank_ <= 0 && target_.pipeline_stage == 0)
      add(kTessera, naming);
    const std::string name =
        rank_ < 0 ? stage_file_name(target_.pipeline_stage) : model_file_name(rank_);
    return builder_.finish(target_.folder + name, Value::dict(std::move(root)));
  }

  /// The file of one expert of a layer.
  ArchiveFile write_expert(const std::vector<const ModuleEntry*>& members) {
    const auto copies = module_copies(source_);
    ValueDict entries;
    for (const ModuleEntry* entry : members) {
      const auto copy = copies.find(entry->name);
      entries.emplace_back(
          Value::string(entry->name),
          builder_.whole(tensor_of(*entry, copy == copies.end() ? kNoTensor : copy->second)));
    }
    const ExpertPlace& place = *state_.experts.find(members.front()->name);
    return builder_.finish(target_.folder + expert_file_name(place.layer, place.number),
                           Value::dict(std::move(entries)));
  }

 private:
  static bool is_weight(const ModuleEntry& entry) {
    return entry.part == Part::kTrained || entry.part == Part::kTied;
  }
  /// What stands in the module: the 16-bit copy that the source has of a weight, where it has one.
  std::uint32_t tensor_of(const ModuleEntry& entry, std::uint32_t copy) const {
    const std::uint32_t tensor =
        entry.part == Part::kTrained ? entry.tensor : module_tensor(source_, entry);
    const bool fits = copy != kNoTensor && !state_.naming.module_weights &&
                      source_.tensors[copy].spec.shape == source_.tensors[tensor].spec.shape;
    return fits ? copy : tensor;
  }

  Value module() {
    const auto copies = module_copies(source_);
    ValueDict entries;
    for (const ModuleEntry& entry : state_.module) {
      if (state_.experts.find(entry.name)) continue;
      const auto copy = copies.find(entry.name);
      const bool has_copy = is_weight(entry) && copy != copies.end();
      if (target_.stage == 3 && entry.part != Part::kBuffer) {
        const DType dtype = source_.tensors[has_copy ? copy->second : entry.tensor].spec.dtype;
        entries.emplace_back(Value::string(entry.name), builder_.flat(dtype, 0, {}));
        continue;
      }
      entries.emplace_back(Value::string(entry.name),
                           builder_.whole(tensor_of(entry, has_copy ? copy->second : kNoTensor)));
    }
    for (const auto& [name, value] : state_.module_values)
      entries.emplace_back(Value::string(name), builder_.take(value));
    return Value::ordered_dict(std::move(entries), builder_.take(state_.module_attributes));
  }

  Value buffer_names() const {
    ValueList names;
    if (target_.pipeline_stages > 0) return Value::list({});
    for (const ModuleEntry& entry : state_.module)
      if (entry.part == Part::kBuffer) names.push_back(Value::string(entry.name));
    return Value::list(std::move(names));
  }

  static Value size_of(const Shape& shape) {
    return Value::size({shape.extents().begin(), shape.extents().end()});
  }

  Value param_shapes() const {
    ValueList groups;
    for (const Target::Buffer& buffer : target_.buffers) {
      ValueDict shapes;
      for (const std::size_t i : buffer.of_share(0)) {
        const SourceParameter& parameter = state_.groups[buffer.group].parameters[i];
        shapes.emplace_back(Value::string(parameter.stored_name()), size_of(parameter.shape));
      }
      groups.push_back(Value::ordered_dict(std::move(shapes), Value()));
    }
    return Value::list(std::move(groups));
  }

  bool is_frozen(const ModuleEntry& entry) const {
    return entry.part == Part::kFrozen ||
           (entry.part == Part::kTrained && shape_of(entry).numel() == 0);
  }
  const Shape& shape_of(const ModuleEntry& entry) const {
    return source_.tensors[entry.tensor].spec.shape;
  }

  // A model that trains an adapter leaves its frozen parameters out: without these fields an engine keeps those that it has, but of an
  // empty dict it asks for each of them.
  void add_frozen(ValueDict& root) {
    ValueDict shapes, fragments;
    for (const ModuleEntry& entry : state_.module) {
      if (target_.pipeline_stages > 0 || !is_frozen(entry)) continue;
      shapes.emplace_back(Value::string(entry.name), size_of(shape_of(entry)));
      fragments.emplace_back(Value::string(entry.name), fragment(entry));
    }
    const bool none = shapes.empty();
    root.emplace_back(text(kFrozenShapes),
                      none ? Value() : Value::ordered_dict(std::move(shapes), Value()));
    root.emplace_back(text(kFrozenFragments),
                      none ? Value() : Value::ordered_dict(std::move(fragments), Value()));
  }
  Value fragment(const ModuleEntry& entry) {
    if (target_.stage < 3) return builder_.whole(entry.tensor);
    const Slice slice =
        slice_of(shape_of(entry).numel(), target_.world_size, std::max<std::int64_t>(rank_, 0));
    return builder_.flat(source_.tensors[entry.tensor].spec.dtype, slice.room,
                         {piece_of(source_, entry.tensor, slice.begin, slice.end)});
  }

  Value shared() const {
    ValueDict pairs;
    for (const ModuleEntry& entry : state_.module)
      if (entry.part == Part::kTied && rank_ <= 0)
        pairs.emplace_back(Value::string(entry.name), Value::string(entry.stored));
    return Value::dict(std::move(pairs));
  }

  Value naming() {
    Value out = state_.naming.to_value();
    ValueDict fp32;
    for (const NamedTensor& item : state_.naming.fp32)
      fp32.emplace_back(Value::string(item.name), builder_.whole(item.tensor));
    if (fp32.empty()) return out;
    ValueDict entries = out.is_none() ? ValueDict{} : out.as_dict();
    entries.emplace_back(text("fp32"), Value::dict(std::move(fp32)));
    return Value::dict(std::move(entries));
  }

  const Manifest& source_;
  const SourceState& state_;
  const Target& target_;
  std::int64_t rank_;
  ArchiveDraft builder_;
};

}  // namespace

Target make_target(const Manifest& source, const TargetRequest& request, const SourceState& state,
                   std::string_view tag_suffix) {
  Target target;
  target.world_size = data_parallel_ranks(request, "DeepSpeed");
  if (target.world_size < 1 || target.world_size > kMostRanks)
    fail(Code::kInvalidArgument,
         fmt::format("{} ranks: between 1 and {} can be written", target.world_size, kMostRanks));
  target.stage = target_stage(source, request);
  target.bf16 = target_is_bf16(source, state);
  target.folder = tag_of(source, state, tag_suffix) + "/";
  if (target.world_size % state.experts.ranks() != 0)
    fail(Code::kInvalidArgument,
         fmt::format(
             "--world-size {}: {} ranks share out the experts, so it must be a multiple of that",
             target.world_size, state.experts.ranks()));
  target.buffers = make_buffers(state, target);
  return target;
}

void complete(const Manifest& source, SourceState& state, const Target& target) {
  Naming& naming = state.naming;
  add_engine_fields(state, target);
  check_parts(source, state);
  if (state.separate_weights && target.stage < 3) naming.module_weights = true;
  if (state.separate_weights && target.stage == 3) {
    for (const SourceGroup& group : state.groups)
      for (const SourceParameter& parameter : group.parameters)
        if (source.tensors[parameter.weight].spec.dtype != group.master)
          in_tensor(parameter.name, [&] {
            fail(Code::kUnsupported,
                 fmt::format("it is {} beside an fp32 master: stage 3 keeps only the master",
                             torch_name(source.tensors[parameter.weight].spec.dtype)),
                 "write stage 2, or take weights from the masters with --prefer master");
          });
    for (const SourceGroup& group : state.groups)
      for (const SourceParameter& parameter : group.parameters)
        state.restated.push_back(parameter.weight);
    state.notes.push_back({Finding::kLeftOut, Severity::kWarning,
                           "stage 3 keeps one copy of weights and fp32 masters, the masters'", "",
                           ""});
  }
  bool tensors = false, numbers = false;
  for (const SourceGroup& group : state.groups)
    for (const GroupedLeaf& leaf : group.leaves) {
      tensors |= leaf.value.is_tensor() && !is_flat(leaf);
      numbers |= leaf.name == kStep && leaf.value.kind() == Value::Kind::kFloat;
    }
  if (target.stage == 3 && tensors) naming.counters = "tensor";
  if (target.stage < 3 && numbers) naming.counters = "value";
  bool natural = target.stage < 3 && state.fp32_of_all_rest;
  for (const ModuleEntry& entry : state.module) {
    if (entry.fp32 == kNoTensor) continue;
    const bool fits = source.tensors[entry.fp32].spec.dtype == DType::kFloat32 &&
                      (same_stored(source, entry.tensor, entry.fp32) || entry.part == Part::kTied ||
                       entry.part == Part::kFrozen);
    natural = natural && fits;
  }
  if (!natural) {
    naming.derive_fp32 = target.stage == 3;  // stage 3 derives none
    for (const ModuleEntry& entry : state.module)
      if (entry.fp32 != kNoTensor) naming.fp32.push_back({entry.name, entry.fp32});
  }
  for (std::size_t g = 0; g < state.groups.size(); ++g) {
    const auto& parameters = state.groups[g].parameters;
    const bool all_empty = std::ranges::all_of(
        parameters, [](const SourceParameter& p) { return p.shape.numel() == 0; });
    for (std::size_t i = 0; i < parameters.size(); ++i)
      if (parameters[i].shape.numel() == 0 && !(target.stage == 3 && all_empty))
        naming.empty.emplace_back(parameters[i].name, static_cast<std::int64_t>(g),
                                  static_cast<std::int64_t>(i));
  }
}

std::vector<ArchiveFile> expert_files(const Manifest& source, const SourceState& state,
                                      const Target& target) {
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<const ModuleEntry*>> experts;
  for (const ModuleEntry& entry : state.module)
    if (const ExpertPlace* place = state.experts.find(entry.name))
      experts[{place->layer, place->number}].push_back(&entry);
  std::vector<ArchiveFile> files;
  for (const auto& [place, members] : experts)
    files.push_back(ModelFileWriter(source, state, target, -1).write_expert(members));
  return files;
}

ArchiveFile model_file(const Manifest& source, const SourceState& state, const Target& target,
                       std::int64_t rank) {
  return ModelFileWriter(source, state, target, rank).write();
}

}  // namespace tessera::deepspeed

#include "lib/format/deepspeed_zero/files.h"

#include <fmt/format.h>
#include <tessera/base/error.h>

#include <algorithm>
#include <array>

#include "lib/format/deepspeed_zero/partition.h"

namespace tessera::deepspeed {
namespace {

constexpr std::array kModelKeys = {kModule,       kOptimizer,          kBufferNames,  kParamShapes,
                                   kFrozenShapes, kFrozenFragments,    kSharedParams, kDpWorldSize,
                                   kMpWorldSize,  kParallelDimensions, kTessera};
constexpr std::array kOptimKeys = {
    kZeroStage,          kBaseState,         kBaseStep,       kFp32Groups,    kFp32FlatGroups,
    kGroupPaddings,      kAlignmentPaddings, kPartitionCount, kSliceMappings, kPartitionGroups,
    kOptimizerStateDict, kParamGroups,       kDsVersion};

template <std::size_t N>
Value without(const Value& dict, const std::array<std::string_view, N>& keys,
              const std::vector<std::string>& more) {
  ValueDict kept;
  for (const auto& entry : dict.as_dict()) {
    const bool named = entry.first.is_string();
    if (named && std::ranges::find(keys, entry.first.as_string()) != keys.end()) continue;
    if (named && std::ranges::find(more, entry.first.as_string()) != more.end()) continue;
    kept.push_back(entry);
  }
  return Value::dict(std::move(kept));
}

ValueList texts(const std::vector<std::string>& list) {
  ValueList out;
  for (const std::string& item : list) out.push_back(Value::string(item));
  return out;
}

Naming parse_naming(const Field& field) {
  Naming out;
  const auto name = [&](std::string_view key, std::string& to) {
    if (const auto found = field.find(key)) to = found->text();
  };
  const auto names = [&](std::string_view key, std::vector<std::string>& to) {
    if (const auto found = field.find(key)) to = found->texts();
  };
  const auto flag = [&](std::string_view key, bool& to) {
    if (const auto found = field.find(key)) to = found->flag();
  };
  field.dict();
  name("model_root", out.model_root);
  name("optim_root", out.optim_root);
  name("fp32_leaf", out.fp32_leaf);
  name("counters", out.counters);
  flag("derive_fp32", out.derive_fp32);
  flag("module_weights", out.module_weights);
  flag("cast_buffers", out.cast_buffers);
  flag("has_groups", out.has_groups);
  names("added", out.added);
  names("no_state", out.no_state);
  if (const auto empty = field.find("empty"))
    for (const auto& [key, place] : empty->entries()) {
      const std::vector<std::int64_t> at = place.counts();
      if (at.size() != 2) place.refuse("a pair of group and place");
      out.empty.emplace_back(key.text(), at[0], at[1]);
    }
  if (const auto fp32 = field.find("fp32")) out.fp32 = tensors_of(*fp32);
  if (const auto rest = field.find(kOptimizer)) out.optimizer = rest->value();
  return out;
}

/// State of torch.optim: {id: leaves} and its groups.
void parse_torch_state(const Field& base, OptimFile& out) {
  for (const auto& [id, leaves] : base.at(kState).entries())
    out.states.emplace(id.count(), leaves.dict());
  for (const Field& group : base.at(kParamGroups).items()) {
    group.dict();
    out.groups.push_back(group.value());
  }
}

void parse_base(const Field& optimizer, OptimFile& out) {
  const auto base = optimizer.find_present(out.stage == 3 ? kOptimizerStateDict : kBaseState);
  if (const auto step = optimizer.find(kBaseStep)) out.base_step = step->value();
  if (!base) return;
  if (base->value().is_dict()) return parse_torch_state(*base, out);
  out.elastic = true;
  std::int64_t id = 0;
  for (const Field& leaves : base->items()) out.states.emplace(id++, leaves.dict());
}

}  // namespace

bool Naming::is_root(std::string_view key) const {
  const auto begins = [key](std::string_view root) {
    return root.substr(0, root.find('.')) == key;
  };
  return key == kGlobalsRoot || begins(model_root) || begins(optim_root);
}

Value Naming::to_value() const {
  const Naming plain;
  ValueDict out;
  const auto name = [&](std::string_view key, const std::string& mine, const std::string& other) {
    if (mine != other) out.emplace_back(text(key), Value::string(mine));
  };
  const auto flag = [&](std::string_view key, bool mine, bool other) {
    if (mine != other) out.emplace_back(text(key), Value::boolean(mine));
  };
  const auto list = [&](std::string_view key, const std::vector<std::string>& items) {
    if (!items.empty()) out.emplace_back(text(key), Value::list(texts(items)));
  };
  name("model_root", model_root, plain.model_root);
  name("optim_root", optim_root, plain.optim_root);
  name("fp32_leaf", fp32_leaf, plain.fp32_leaf);
  name("counters", counters, plain.counters);
  flag("derive_fp32", derive_fp32, plain.derive_fp32);
  flag("module_weights", module_weights, plain.module_weights);
  flag("cast_buffers", cast_buffers, plain.cast_buffers);
  flag("has_groups", has_groups, plain.has_groups);
  list("added", added);
  list("no_state", no_state);
  ValueDict places;
  for (const auto& [parameter, group, place] : empty)
    places.emplace_back(Value::string(parameter),
                        Value::list({Value::integer(group), Value::integer(place)}));
  if (!places.empty()) out.emplace_back(text("empty"), Value::dict(std::move(places)));
  if (!optimizer.is_dict() || !optimizer.as_dict().empty())
    out.emplace_back(text(kOptimizer), optimizer);
  return out.empty() ? Value() : Value::dict(std::move(out));
}

ModelFile parse_model_file(const TorchArchive& archive) {
  ModelFile out;
  out.root = archive.root;
  const Field root(out.root);
  static const Value kNoModule = Value::dict({});
  out.has_module = !root.at(kModule).value().is_none();  // a pipeline keeps weights by layer
  const Field module = out.has_module ? root.at(kModule) : Field(kNoModule);
  for (const auto& [key, field] : module.entries()) {
    if (field.value().is_tensor()) {
      out.module.push_back({key.text(), field.tensor()});
    } else {
      out.module_values.emplace_back(key.text(), field.value());
    }
  }
  if (module.value().kind() == Value::Kind::kOrderedDict)
    out.module_attributes = module.value().attributes();
  if (const auto names = root.find_present(kBufferNames))
    for (std::string& name : names->texts()) out.buffers.insert(std::move(name));
  if (const auto shapes = root.find_present(kParamShapes)) {
    out.has_shapes = true;
    if (shapes->value().is_dict()) {
      out.param_shapes = {shapes_of(*shapes)};
    } else {
      for (const Field& group : shapes->items()) out.param_shapes.push_back(shapes_of(group));
    }
  }
  if (const auto shapes = root.find_present(kFrozenShapes)) out.frozen_shapes = shapes_of(*shapes);
  if (const auto fragments = root.find_present(kFrozenFragments))
    for (NamedTensor& item : tensors_of(*fragments))
      out.frozen.emplace(std::move(item.name), item.tensor);
  if (const auto shared = root.find_present(kSharedParams))
    for (const auto& [name, stored] : shared->entries())
      out.shared.emplace_back(name.text(), stored.text());
  out.stacked = StackedExperts(root);
  if (const auto naming = root.find(kTessera)) out.naming = parse_naming(*naming);
  return out;
}

Value other_state(const ModelFile& model) {
  return without(model.root, kModelKeys, model.naming.added);
}

std::int64_t OptimFile::world_size() const {
  return partition_count.empty() ? 0 : *std::ranges::max_element(partition_count);
}

OptimFile parse_optim_file(const TorchArchive& archive) {
  OptimFile out;
  out.optimizer = Field(archive.root).at(kOptimizerStateDict).value();
  const Field optimizer(out.optimizer, {}, std::string(kOptimizerStateDict));
  optimizer.dict();
  if (const auto stage = optimizer.find_present(kZeroStage)) {
    out.stage = stage->count();
    if (*out.stage < 1 || *out.stage > 3) stage->refuse("a stage of 1, 2 or 3");
  }
  if (const auto count = optimizer.find_present(kPartitionCount))
    out.partition_count =
        count->value().kind() == Value::Kind::kList ? count->counts() : std::vector{count->count()};
  if (const auto groups = optimizer.find_present(kPartitionGroups)) {
    out.partition_count.clear();
    for (const Field& group : groups->items()) {
      out.partition_ranks.push_back(group.at("partition_ranks").counts());
      out.partition_count.push_back(static_cast<std::int64_t>(out.partition_ranks.back().size()));
    }
  }
  out.fp32 = tensor_list_of(optimizer.at(out.stage == 3 ? kFp32FlatGroups : kFp32Groups));
  if (const auto paddings = optimizer.find_present(kGroupPaddings))
    out.paddings = paddings->counts();
  if (const auto alignment = optimizer.find_present(kAlignmentPaddings))
    for (const Field& group : alignment->items()) out.alignment.push_back(group.counts());
  parse_base(optimizer, out);
  return out;
}

std::vector<std::string> group_order(const std::vector<NamedShape>& stored, bool round_robin,
                                     std::int64_t world_size) {
  std::vector<std::string> names(stored.size());
  const std::vector<std::size_t> order = round_robin_order(stored.size(), world_size);
  for (std::size_t i = 0; i < stored.size(); ++i)
    names[round_robin ? order[i] : i] = stored[i].name;
  return names;
}

bool counters_are_values(const Naming& naming, std::int64_t stage) {
  return naming.counters.empty() ? stage == 3 : naming.counters == "value";
}

bool is_round_robin(const Value& root) {
  const Value* config = root.find(kDsConfig);
  const Value* zero = config ? config->find("zero_optimization") : nullptr;
  return zero && flag_in(*zero, "round_robin_gradients").value_or(false);
}

Value global_state(const Value& optimizer) {
  ValueDict out;
  const Value kept = without(optimizer, kOptimKeys, {});
  for (const auto& [key, value] : kept.as_dict()) out.emplace_back(key, plain_scaler(value));
  return Value::dict(std::move(out));
}

}  // namespace tessera::deepspeed

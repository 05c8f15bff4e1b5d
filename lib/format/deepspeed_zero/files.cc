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

const Value* present(const Value& dict, std::string_view key) {
  const Value* found = dict.find(key);
  return found && !found->is_none() ? found : nullptr;
}

bool flag(const Value& dict, std::string_view key, bool otherwise) {
  const Value* found = dict.find(key);
  if (!found) return otherwise;
  if (found->kind() != Value::Kind::kBool)
    fail(Code::kCorrupt, fmt::format("\"{}\" is neither true nor false", key));
  return found->as_bool();
}

ValueList texts(const std::vector<std::string>& list) {
  ValueList out;
  for (const std::string& item : list) out.push_back(Value::string(item));
  return out;
}

Naming parse_naming(const Value& value) {
  Naming out;
  const auto name = [&](std::string_view key, std::string& to) {
    if (const Value* found = value.find(key)) to = text_of(*found, key);
  };
  dict_of(value, kTessera);
  name("model_root", out.model_root);
  name("optim_root", out.optim_root);
  name("fp32_leaf", out.fp32_leaf);
  name("counters", out.counters);
  out.derive_fp32 = flag(value, "derive_fp32", true);
  out.module_weights = flag(value, "module_weights", false);
  out.cast_buffers = flag(value, "cast_buffers", true);
  out.has_groups = flag(value, "has_groups", true);
  if (const Value* added = value.find("added")) out.added = texts_of(*added, "added");
  if (const Value* names = value.find("no_state")) out.no_state = texts_of(*names, "no_state");
  if (const Value* empty = value.find("empty"))
    for (const auto& [key, place] : dict_of(*empty, "empty")) {
      const std::vector<std::int64_t> at = counts_of(place, "empty");
      if (at.size() != 2) fail(Code::kCorrupt, "\"empty\" holds no pair of group and place");
      out.empty.emplace_back(text_of(key, "empty"), at[0], at[1]);
    }
  if (const Value* fp32 = value.find("fp32")) out.fp32 = tensors_of(*fp32, "fp32");
  if (const Value* rest = value.find(kOptimizer)) out.optimizer = *rest;
  return out;
}

/// State of torch.optim: {id: leaves} and its groups.
void parse_torch_state(const Value& base, OptimFile& out) {
  for (const auto& [id, leaves] : dict_of(require(base, kState), kState))
    out.states.emplace(count_of(id, "state key"), dict_of(leaves, kState));
  for (const Value& group : list_of(require(base, kParamGroups), kParamGroups)) {
    dict_of(group, kParamGroups);
    out.groups.push_back(group);
  }
}

void parse_base(const Value& optimizer, OptimFile& out) {
  const Value* base = present(optimizer, out.stage == 3 ? kOptimizerStateDict : kBaseState);
  if (const Value* step = optimizer.find(kBaseStep)) out.base_step = *step;
  if (!base) return;
  if (base->is_dict()) return parse_torch_state(*base, out);
  out.elastic = true;
  std::int64_t id = 0;
  for (const Value& leaves : list_of(*base, kBaseState))
    out.states.emplace(id++, dict_of(leaves, kBaseState));
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
  dict_of(out.root, "model file");
  const Value& module = require(out.root, kModule);
  if (module.is_none())
    fail(Code::kUnsupported, "\"module\" is empty: pipeline parallelism keeps weights by layer");
  for (const auto& [key, value] : dict_of(module, kModule)) {
    if (value.is_tensor()) {
      out.module.push_back({text_of(key, kModule), value.tensor_index()});
    } else {
      out.module_values.emplace_back(text_of(key, kModule), value);
    }
  }
  if (module.kind() == Value::Kind::kOrderedDict) out.module_attributes = module.attributes();
  if (const Value* names = present(out.root, kBufferNames))
    for (std::string& name : texts_of(*names, kBufferNames)) out.buffers.insert(std::move(name));
  if (const Value* shapes = present(out.root, kParamShapes)) {
    out.has_shapes = true;
    if (shapes->is_dict()) {
      out.param_shapes = {shapes_of(*shapes, kParamShapes)};
    } else {
      for (const Value& group : list_of(*shapes, kParamShapes))
        out.param_shapes.push_back(shapes_of(group, kParamShapes));
    }
  }
  if (const Value* shapes = present(out.root, kFrozenShapes))
    out.frozen_shapes = shapes_of(*shapes, kFrozenShapes);
  if (const Value* fragments = present(out.root, kFrozenFragments))
    for (NamedTensor& item : tensors_of(*fragments, kFrozenFragments))
      out.frozen.emplace(std::move(item.name), item.tensor);
  if (const Value* shared = present(out.root, kSharedParams))
    for (const auto& [name, stored] : dict_of(*shared, kSharedParams))
      out.shared.emplace_back(text_of(name, kSharedParams), text_of(stored, kSharedParams));
  if (const Value* naming = out.root.find(kTessera)) out.naming = parse_naming(*naming);
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
  dict_of(archive.root, "optimizer file");
  out.optimizer = require(archive.root, kOptimizerStateDict);
  const Value& optimizer = out.optimizer;
  dict_of(optimizer, kOptimizerStateDict);
  if (const Value* stage = present(optimizer, kZeroStage)) out.stage = count_of(*stage, kZeroStage);
  if (out.stage && (*out.stage < 1 || *out.stage > 3))
    fail(Code::kCorrupt, fmt::format("zero_stage is {}", *out.stage));
  if (const Value* count = present(optimizer, kPartitionCount))
    out.partition_count = count->kind() == Value::Kind::kList
                              ? counts_of(*count, kPartitionCount)
                              : std::vector{count_of(*count, kPartitionCount)};
  if (present(optimizer, kPartitionGroups))
    fail(Code::kUnsupported, "experts that are partitioned over groups of their own");
  out.fp32 = tensor_list_of(require(optimizer, out.stage == 3 ? kFp32FlatGroups : kFp32Groups),
                            kFp32Groups);
  if (const Value* paddings = present(optimizer, kGroupPaddings))
    out.paddings = counts_of(*paddings, kGroupPaddings);
  if (const Value* alignment = present(optimizer, kAlignmentPaddings))
    for (const Value& group : list_of(*alignment, kAlignmentPaddings))
      out.alignment.push_back(counts_of(group, kAlignmentPaddings));
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
  const Value* flag = zero ? zero->find("round_robin_gradients") : nullptr;
  return flag && flag->kind() == Value::Kind::kBool && flag->as_bool();
}

Value global_state(const Value& optimizer) {
  ValueDict out;
  const Value kept = without(optimizer, kOptimKeys, {});
  for (const auto& [key, value] : kept.as_dict()) out.emplace_back(key, plain_scaler(value));
  return Value::dict(std::move(out));
}

}  // namespace tessera::deepspeed

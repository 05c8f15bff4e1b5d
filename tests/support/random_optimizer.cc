#include "tests/support/random_optimizer.h"

#include <fmt/format.h>
#include <tessera/encoding/json.h>
#include <tessera/ops/hash.h>
#include <tessera/state/roles.h>

#include <algorithm>
#include <random>

namespace tessera::testing {
namespace {

using Kind = OptimizerKind;

struct Parameter {
  std::string fqn;
  Shape shape;
  bool trained = true;  // has state
  int group = -1;       // -1: no optimizer knows it
};

class Maker {
 public:
  Maker(std::uint64_t seed, OptimizerKind kind, OptimizerForm form, bool awkward)
      : random_(seed), kind_(kind), form_(form), awkward_(awkward) {}

  Manifest make() {
    awkward_ ? plan_awkward() : plan();
    for (const Parameter& p : parameters_) weight(p);
    if (!awkward_) buffer();
    members_ = parameters_;
    if (awkward_) std::ranges::shuffle(members_, random_);
    std::map<std::string, std::string> keys = stored_keys();
    for (int g = 0; g < groups_; ++g)
      for (const Parameter& p : members_)
        if (p.group == g) state(p, keys.at(p.fqn));
    for (int g = 0; g < groups_; ++g) group(g, keys);
    manifest_.format = "made";
    const Roles roles = find_roles(manifest_.state);
    assign_kinds(manifest_, roles);
    return std::move(manifest_);
  }

 private:
  int upto(int n) { return std::uniform_int_distribution<int>(0, n)(random_); }

  /// Shapes are all different, so that ids have one answer.
  void plan() {
    const int count = 2 + upto(5);
    groups_ = 1 + upto(2);
    for (int i = 0; i < count; ++i) {
      Parameter p;
      p.fqn = fmt::format("layers.{}.{}", i / 2, i % 2 == 0 ? "weight" : "bias");
      p.shape = i % 2 == 0 ? Shape{i + 2, 1 + upto(3)} : Shape{i + 7};
      p.group = upto(5) == 0 ? -1 : upto(groups_ - 1);
      p.trained = p.group >= 0;
      parameters_.push_back(p);
    }
    for (int g = 0; g < groups_; ++g)  // no empty groups: a flattened form cannot say them
      if (std::ranges::none_of(parameters_, [&](const Parameter& p) { return p.group == g; }))
        parameters_.push_back({fmt::format("extra.{}", g), Shape{31 + g}, true, g});
    named_ = upto(3) == 0;
    if (named_ || form_ != OptimizerForm::kIds)  // ids alone are certain only where all have state
      for (Parameter& p : parameters_)
        if (p.group >= 0 && upto(6) == 0) p.trained = false;
  }

  void plan_awkward() {
    groups_ = 1 + upto(2);
    for (int layer = 0; layer < 2; ++layer) {
      const std::string mlp = fmt::format("decoder.layers.{}.mlp.", layer);
      for (const auto& [name, shape] :
           {std::pair("linear_fc1.weight", Shape{4, 4}), std::pair("linear_fc1.bias", Shape{4}),
            std::pair("linear_fc2.weight", Shape{4, 4}), std::pair("linear_fc2.bias", Shape{4})}) {
        const bool frozen = upto(3) == 0;
        parameters_.push_back(
            {mlp + name, shape, !frozen, frozen && upto(1) == 0 ? -1 : upto(groups_ - 1)});
      }
      if (upto(1) == 0)
        parameters_.push_back({mlp + "running_mean", Shape{4}, false, -1});  // a buffer
    }
    for (int g = 0; g < groups_; ++g)
      if (std::ranges::none_of(parameters_, [&](const Parameter& p) { return p.group == g; }))
        parameters_.push_back(
            {fmt::format("decoder.extra{}.linear_fc2.bias", g), Shape{4}, true, g});
    named_ = upto(3) == 0;
  }

  /// Ids run group by group; forms keyed by name keep it.
  std::map<std::string, std::string> stored_keys() const {
    std::map<std::string, std::string> keys;
    int next = 0;
    for (int g = 0; g < groups_; ++g)
      for (const Parameter& p : members_)
        if (p.group == g)
          keys[p.fqn] = form_ == OptimizerForm::kIds ? std::to_string(next++) : p.fqn;
    return keys;
  }

  static PathItem key(const std::string& text) { return {PathItem::Kind::kKey, 0, text}; }
  PathItem state_key(const std::string& text) const {
    if (form_ != OptimizerForm::kIds) return key(text);
    return {PathItem::Kind::kIntKey, std::stoll(text), ""};
  }

  void add(Path path, Value value) {
    StateEntry entry{dotted(path), std::move(path), std::move(value)};
    if (entry.value.is_tensor()) manifest_.tensors[entry.value.tensor_index()].name = entry.name;
    manifest_.state.entries.push_back(std::move(entry));
  }
  Value tensor(DType dtype, const Shape& shape) {
    StoredTensor stored;
    stored.spec = {dtype, shape};
    stored.first_chunk = manifest_.chunks.size();
    stored.chunk_count = 1;
    Bytes bytes(static_cast<std::size_t>(stored.spec.size_bytes()));
    for (std::byte& b : bytes) b = static_cast<std::byte>(upto(250));
    Source source;
    source.kind = Source::Kind::kInline;
    source.side = static_cast<std::uint32_t>(manifest_.inline_bytes.size());
    source.length = bytes.size();
    manifest_.inline_bytes.push_back(std::move(bytes));
    manifest_.chunks.add(Chunk::whole_of(Box::whole(shape)), source);
    manifest_.tensors.push_back(std::move(stored));
    return Value::tensor(static_cast<std::uint32_t>(manifest_.tensors.size() - 1));
  }

  void weight(const Parameter& p) {
    const bool half = kind_ == Kind::kTransformerEngine;
    add({key("model"), key(p.fqn)}, tensor(half ? DType::kBFloat16 : DType::kFloat32, p.shape));
  }
  void buffer() {
    add({key("model"), key("running_mean")}, tensor(DType::kFloat32, Shape{3}));
    add({key("model"), key("count")}, tensor(DType::kInt64, Shape{}));
  }

  void leaf(const std::string& owner, const std::string& name, Value value) {
    if (form_ == OptimizerForm::kFlat)
      return add({key("optim"), key("state." + owner + "." + name)}, std::move(value));
    add({key("optim"), key("state"), state_key(owner), key(name)}, std::move(value));
  }
  void state(const Parameter& p, const std::string& owner) {
    if (!p.trained) return;
    const auto moment = [&](const char* name) {
      leaf(owner, name, tensor(DType::kFloat32, p.shape));
    };
    switch (kind_) {
      case Kind::kSgd:
        return;
      case Kind::kSgdMomentum:
        return named_ && upto(3) == 0 ? leaf(owner, "momentum_buffer", Value())
                                      : moment("momentum_buffer");
      case Kind::kFactored:
        leaf(owner, "step", Value::integer(9));
        leaf(owner, "exp_avg_sq_row", tensor(DType::kFloat32, Shape{p.shape[0]}));
        return moment("exp_avg");
      case Kind::kUnknown:
        leaf(owner, "novel_count", Value::integer(upto(9)));
        leaf(owner, "novel_table", tensor(DType::kFloat64, p.shape));
        return moment("exp_avg");
      case Kind::kAsgd:
        for (const char* name : {"step", "eta", "mu"})
          leaf(owner, name, tensor(DType::kFloat32, {}));
        return moment("ax");
      case Kind::kAdafactor:
        leaf(owner, "step", tensor(DType::kFloat32, {}));
        if (p.shape.rank() < 2) return moment("variance");
        leaf(owner, "row_var", tensor(DType::kFloat32, Shape{p.shape[0], 1}));
        return leaf(owner, "col_var", tensor(DType::kFloat32, Shape{1, p.shape[1]}));
      default:
        break;
    }
    const bool own_step = kind_ != Kind::kApex && kind_ != Kind::kTransformerEngine;
    if (own_step)
      leaf(owner, "step",
           kind_ == Kind::kOldAdam ? Value::integer(40 + upto(3)) : tensor(DType::kFloat32, {}));
    if (kind_ == Kind::kNadam) leaf(owner, "mu_product", tensor(DType::kFloat32, {}));
    moment("exp_avg");
    moment("exp_avg_sq");
    if (kind_ == Kind::kAmsgrad) moment("max_exp_avg_sq");
    if (kind_ == Kind::kTransformerEngine) moment("master_param");
  }

  void group(int g, const std::map<std::string, std::string>& keys) {
    ValueList members, names;
    for (const Parameter& p : members_) {
      if (p.group != g) continue;
      members.push_back(form_ == OptimizerForm::kIds ? Value::integer(std::stoll(keys.at(p.fqn)))
                                                     : Value::string(p.fqn));
      names.push_back(Value::string(p.fqn));
    }
    std::vector<std::pair<std::string, Value>> options = {
        {"lr", Value::real(0.5 + g)},  // groups differ: a flattened form keeps them apart
        {"betas", Value::list({Value::real(0.9), Value::real(0.95)}, Value::Kind::kTuple)},
        {"fused", Value()}};
    if (kind_ == Kind::kApex || kind_ == Kind::kTransformerEngine || kind_ == Kind::kDeepSpeedAdam)
      options.emplace_back("step", Value::integer(kind_ == Kind::kDeepSpeedAdam ? 0 : 17));
    if (kind_ == Kind::kUnknown) options.emplace_back("novel_option", Value::string("x"));
    if (named_) options.emplace_back("param_names", Value::list(names));
    if (form_ == OptimizerForm::kFlat) {
      for (const Value& name : names)
        for (const auto& [option, value] : options)
          add({key("optim"), key("param_groups." + name.as_string() + "." + option)}, value);
      return;
    }
    options.emplace_back("params", Value::list(std::move(members)));
    for (const auto& [option, value] : options)
      add({key("optim"), key("param_groups"), {PathItem::Kind::kIndex, g, ""}, key(option)}, value);
  }

  std::mt19937_64 random_;
  OptimizerKind kind_;
  OptimizerForm form_;
  int groups_ = 1;
  bool named_ = false;
  bool awkward_;
  std::vector<Parameter> parameters_;  // in the model's order
  std::vector<Parameter> members_;     // in that of the groups
  Manifest manifest_;
};

}  // namespace

std::string kind_text(OptimizerKind kind) {
  constexpr const char* kTexts[] = {
      "Adam",      "Adam before 1.12", "amsgrad", "SGD",   "SGD momentum", "Apex",     "TE",
      "DeepSpeed", "factored",         "unknown", "NAdam", "ASGD",         "Adafactor"};
  return kTexts[static_cast<int>(kind)];
}

Manifest random_optimizer(std::uint64_t seed, OptimizerKind kind, OptimizerForm form) {
  return Maker(seed, kind, form, false).make();
}

Manifest awkward_optimizer(std::uint64_t seed, OptimizerKind kind, OptimizerForm form) {
  return Maker(seed, kind, form, true).make();
}

std::map<std::string, std::string> canonical_content(const Manifest& manifest,
                                                     const Directory& directory) {
  std::map<std::string, std::string> out;
  ValueBudget budget(1 << 20);
  const auto value_text = [&](const Value& value) {
    return canonical_json(to_json_value(
        value, [](std::uint32_t) { return Value::string("tensor"); }, budget));
  };
  const auto tensor_text = [&](std::uint32_t t) {
    return fmt::format("{} {}", manifest.tensors[t].spec.to_string(),
                       hash_tensors(manifest, directory, {t}, {}).front());
  };
  const Roles roles = find_roles(manifest.state);
  for (std::size_t i = 0; i < roles.entries.size(); ++i)
    if (roles.entries[i].role == Role::kModel && manifest.state.entries[i].value.is_tensor())
      out["model " + roles.entries[i].fqn] =
          tensor_text(manifest.state.entries[i].value.tensor_index());
  for (const OptimState& optim : canonical_optim_states(manifest, roles)) {
    for (const OptimParameter& p : optim.parameters)
      for (const OptimLeaf& leaf : p.leaves)
        out[p.fqn + " " + leaf.name] = leaf.tensor != kNoTensor
                                           ? tensor_text(leaf.tensor)
                                           : value_text(manifest.state.entries[leaf.entry].value);
    for (const OptimGroup& group : optim.groups) {
      std::vector<std::string> members = group.members;
      std::ranges::sort(members);
      for (const std::string& member : members)
        out[fmt::format("group {}", group.index)] += member + " ";
      for (const auto& [option, value] : group.options)
        if (option.as_string() != "param_names")
          out[fmt::format("group {} {}", group.index, option.as_string())] = value_text(value);
    }
  }
  return out;
}

}  // namespace tessera::testing

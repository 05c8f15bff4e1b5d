// What each entry of a state dict is for a training run.
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/state/roles.h>

#include <catch2/catch.hpp>
#include <map>

namespace roles_test {

using namespace tessera;

namespace {

/// A manifest of leaves: "name" or "name:shape" with dots as path separators; "|" separates path
/// items whose text holds dots. Values: see value().
class Scene {
 public:
  /// A tensor leaf; `items`: its path.
  Scene& tensor(std::vector<std::string> items, Shape shape, DType dtype = DType::kFloat32) {
    StoredTensor stored;
    stored.spec = {dtype, std::move(shape)};
    Path path = to_path(items);
    stored.name = dotted(path);
    manifest.state.entries.push_back(
        {stored.name, path, Value::tensor(static_cast<std::uint32_t>(manifest.tensors.size()))});
    manifest.tensors.push_back(std::move(stored));
    return *this;
  }
  Scene& value(std::vector<std::string> items, Value value) {
    Path path = to_path(items);
    manifest.state.entries.push_back({dotted(path), path, std::move(value)});
    return *this;
  }
  const EntryRole& role(const std::string& name) {
    roles = find_roles(manifest.state);
    for (std::size_t i = 0; i < roles.entries.size(); ++i)
      if (manifest.state.entries[i].name == name) return roles.entries[i];
    FAIL("no " << name);
    return roles.entries.front();
  }
  TensorKind kind(const std::string& name) {
    assign_kinds(manifest, find_roles(manifest.state));
    return manifest.find(name)->kind;
  }

  Manifest manifest;
  Roles roles;

 private:
  static Path to_path(const std::vector<std::string>& items) {
    Path path;
    for (const std::string& item : items)
      path.push_back(is_decimal(item) ? PathItem{PathItem::Kind::kIntKey, std::stoll(item), ""}
                                      : PathItem{PathItem::Kind::kKey, 0, item});
    return path;
  }
};

Value strings(std::vector<std::string> texts) {
  ValueList list;
  for (std::string& text : texts) list.push_back(Value::string(std::move(text)));
  return Value::list(std::move(list));
}

Scene by_fqn() {
  Scene scene;
  scene.tensor({"model", "a.weight"}, {4, 3})
      .tensor({"model", "a.bias"}, {4})
      .tensor({"model", "norm.running_mean"}, {4})
      .tensor({"model", "steps"}, Shape{}, DType::kInt64)
      .tensor({"optim", "state", "a.weight", "exp_avg"}, {4, 3})
      .tensor({"optim", "state", "a.weight", "step"}, Shape{})
      .value({"optim", "param_groups", "0", "lr"}, Value::real(0.1))
      .value({"optim", "param_groups", "0", "params"}, strings({"a.weight"}))
      .value({"epoch"}, Value::integer(3));
  return scene;
}

}  // namespace

TEST_CASE("FQN-keyed: state, group, model and the rest") {
  Scene scene = by_fqn();
  const EntryRole state = scene.role("optim.state.a.weight.exp_avg");
  CHECK(state.role == Role::kOptimState);
  CHECK(state.fqn == "a.weight");
  CHECK(state.leaf == "exp_avg");
  CHECK(scene.roles.optimizers.at(0).name == "optim");
  CHECK(scene.roles.optimizers.at(0).dialect == OptimDialect::kByFqn);
  CHECK(scene.roles.model_roots == std::vector<std::string>{"model"});
  CHECK(scene.role("model.a.bias").fqn == "a.bias");
  const EntryRole lr = scene.role("optim.param_groups.0.lr");
  CHECK(lr.role == Role::kOptimGroup);
  CHECK(lr.group == 0);
  CHECK(lr.leaf == "lr");
  CHECK(scene.role("epoch").role == Role::kOther);
}

TEST_CASE("integer ids make another dialect, wherever the optimizer stands") {
  for (const std::vector<std::string>& root :
       std::vector<std::vector<std::string>>{{"optimizer"}, {"trainer", "optim"}, {}}) {
    Scene scene;
    auto state = root, group = root;
    state.insert(state.end(), {"state", "0", "momentum_buffer"});
    group.insert(group.end(), {"param_groups", "0", "params"});
    scene.tensor(state, {4}).value(group, Value::list({Value::integer(0)}));
    const EntryRole role = scene.role(scene.manifest.state.entries[0].name);
    CHECK(role.role == Role::kOptimState);
    CHECK(role.fqn == "0");
    CHECK(scene.roles.optimizers.at(0).dialect == OptimDialect::kById);
  }
}

TEST_CASE("flattened keys: one path item holds FQN and leaf") {
  Scene scene;
  scene.tensor({"model", "w"}, {2})
      .tensor({"optim", "state.w.exp_avg"}, {2})
      .value({"optim", "param_groups.w.lr"}, Value::real(0.1));
  const EntryRole state = scene.role("optim.state.w.exp_avg");
  CHECK(state.fqn == "w");
  CHECK(state.leaf == "exp_avg");
  CHECK(scene.roles.optimizers.at(0).dialect == OptimDialect::kFlat);
  const EntryRole lr = scene.role("optim.param_groups.w.lr");
  CHECK(lr.role == Role::kOptimGroup);
  CHECK(lr.fqn == "w");
  CHECK(lr.leaf == "lr");
}

TEST_CASE("flattened keys in one dict for all: a group's name is a parameter's and its option's") {
  for (const std::string fqn : {"layers.0.w", "0.weight"}) {
    CAPTURE(fqn);
    Scene scene;
    scene.tensor({fqn}, {2})
        .tensor({"optim.state." + fqn + ".exp_avg"}, {2})
        .value({"optim.param_groups." + fqn + ".lr"}, Value::real(0.1));
    const EntryRole lr = scene.role("optim.param_groups." + fqn + ".lr");
    CHECK(lr.role == Role::kOptimGroup);
    CHECK(lr.fqn == fqn);
    CHECK(lr.leaf == "lr");
    CHECK(scene.role("optim.state." + fqn + ".exp_avg").fqn == fqn);
    CHECK(scene.roles.optimizers.at(0).dialect == OptimDialect::kFlat);
  }
  Scene numbered;  // groups by their numbers
  numbered.tensor({"optim.state.0.exp_avg"}, {2})
      .value({"optim.param_groups.0.lr"}, Value::real(0.1));
  CHECK(numbered.role("optim.param_groups.0.lr").group == 0);
  CHECK(numbered.roles.optimizers.at(0).dialect == OptimDialect::kById);
}

TEST_CASE("leaf first, as Megatron keeps it") {
  Scene scene;
  scene.tensor({"model", "decoder.w"}, {2})
      .tensor({"optimizer", "state", "exp_avg", "decoder.w"}, {2});
  const EntryRole state = scene.role("optimizer.state.exp_avg.decoder.w");
  CHECK(state.fqn == "decoder.w");
  CHECK(state.leaf == "exp_avg");
  CHECK(scene.roles.optimizers.at(0).dialect == OptimDialect::kLeafFirst);
}

TEST_CASE("a model's own names never make an optimizer") {
  Scene scene;  // a layer called state, a parameter called step
  scene.tensor({"model", "ssm.state.proj.weight"}, {4, 4}).tensor({"model", "clock.step"}, Shape{});
  CHECK(scene.role("model.ssm.state.proj.weight").role == Role::kModel);
  CHECK(scene.roles.optimizers.empty());
  Scene bare;  // the same, names without paths
  bare.tensor({"ssm.state.proj.weight"}, {4, 4}).tensor({"ssm.state.proj.bias"}, {4});
  CHECK(bare.role("ssm.state.proj.weight").role == Role::kModel);
}

TEST_CASE("weights at the top are the model; counters beside them are not") {
  Scene scene;
  scene.tensor({"a.weight"}, {4, 3}).value({"epoch"}, Value::integer(1));
  CHECK(scene.role("a.weight").role == Role::kModel);
  CHECK(scene.role("a.weight").fqn == "a.weight");
  CHECK(scene.role("epoch").role == Role::kOther);
}

TEST_CASE("kinds follow from roles, types and ranks") {
  Scene scene = by_fqn();
  scene.tensor({"optim", "state", "a.weight", "master_param"}, {4, 3});
  CHECK(scene.kind("model.a.weight") == TensorKind::kParam);
  CHECK(scene.kind("model.a.bias") == TensorKind::kParam);
  CHECK(scene.kind("model.norm.running_mean") == TensorKind::kBuffer);
  CHECK(scene.kind("model.steps") == TensorKind::kOther);
  CHECK(scene.kind("optim.state.a.weight.exp_avg") == TensorKind::kOptim);
  CHECK(scene.kind("optim.state.a.weight.step") == TensorKind::kOptim);
  CHECK(scene.kind("optim.state.a.weight.master_param") == TensorKind::kMaster);
}

TEST_CASE("a listed parameter is one whatever its type, rank or name") {
  Scene scene;
  scene.tensor({"model", "running_scale"}, Shape{})
      .tensor({"model", "other"}, Shape{})
      .tensor({"optim", "state", "running_scale", "exp_avg"}, Shape{})
      .value({"optim", "param_groups", "0", "params"}, strings({"running_scale"}));
  CHECK(scene.kind("model.running_scale") == TensorKind::kParam);
  CHECK(scene.kind("model.other") == TensorKind::kOther);
}

TEST_CASE("a kind set by the format stays") {
  Scene scene = by_fqn();
  scene.manifest.tensors[0].kind = TensorKind::kBuffer;
  CHECK(scene.kind("model.a.weight") == TensorKind::kBuffer);
}

TEST_CASE("renaming moves weight, state and membership together") {
  for (const bool flat : {false, true}) {
    Scene scene;
    scene.tensor({"model", "a.weight"}, {2}).tensor({"model", "a.weights"}, {2});
    if (flat) {
      scene.tensor({"optim", "state.a.weight.exp_avg"}, {2})
          .value({"optim", "param_groups.a.weight.lr"}, Value::real(1));
    } else {
      scene.tensor({"optim", "state", "a.weight", "exp_avg"}, {2})
          .value({"optim", "param_groups", "0", "params"}, strings({"a.weight", "a.weights"}));
    }
    rename_parameters(scene.manifest, find_roles(scene.manifest.state), [](const std::string& fqn) {
      return fqn == "a.weight" ? std::string("b.w") : fqn;
    });
    const StateDict& state = scene.manifest.state;
    CHECK(state.entries[0].name == "model.b.w");
    CHECK(dotted(state.entries[0].path) == "model.b.w");
    CHECK(scene.manifest.tensors[0].name == "model.b.w");
    CHECK(state.entries[1].name == "model.a.weights");
    CHECK(state.entries[2].name == "optim.state.b.w.exp_avg");
    CHECK(dotted(state.entries[2].path) == "optim.state.b.w.exp_avg");
    CHECK(scene.manifest.tensors[2].name == "optim.state.b.w.exp_avg");
    if (flat) {
      CHECK(state.entries[3].name == "optim.param_groups.b.w.lr");
      CHECK(dotted(state.entries[3].path) == "optim.param_groups.b.w.lr");
    } else {
      CHECK(state.entries[3].value == strings({"b.w", "a.weights"}));
    }
  }
}

TEST_CASE("an FQN that is spelled inside its own root is renamed in its own place") {
  Scene scene;  // the FQN "t" also occurs in "state", "optim" and "exp_avg"'s neighbours
  scene.tensor({"model", "t"}, {2}).tensor({"optim", "state.t.step"}, Shape{});
  rename_parameters(scene.manifest, find_roles(scene.manifest.state),
                    [](const std::string&) { return std::string("weight"); });
  CHECK(scene.manifest.state.entries[1].name == "optim.state.weight.step");
  CHECK(dotted(scene.manifest.state.entries[1].path) == "optim.state.weight.step");
}

TEST_CASE("renaming never merges two entries") {
  Scene scene = by_fqn();
  CHECK_THROWS_AS(rename_parameters(scene.manifest, find_roles(scene.manifest.state),
                                    [](const std::string&) { return std::string("x"); }),
                  Error);
}

TEST_CASE("ids stay when their parameters are renamed") {
  Scene scene;
  scene.tensor({"model", "0"}, {2})
      .tensor({"optim", "state", "0", "exp_avg"}, {2})
      .value({"optim", "param_groups", "0", "params"}, Value::list({Value::integer(0)}));
  rename_parameters(scene.manifest, find_roles(scene.manifest.state),
                    [](const std::string& fqn) { return "new." + fqn; });
  CHECK(scene.manifest.state.entries[0].name == "model.new.0");
  CHECK(scene.manifest.state.entries[1].name == "optim.state.0.exp_avg");
}

TEST_CASE("dropping entries drops their tensors and memberships and renumbers the rest") {
  Scene scene = by_fqn();
  std::vector<bool> keep(scene.manifest.state.entries.size(), true);
  keep[0] = keep[4] = keep[5] = false;  // a.weight and its state
  keep_entries(scene.manifest, keep, {"a.weight"});
  CHECK(scene.manifest.tensors.size() == 3);
  for (const StateEntry& entry : scene.manifest.state.entries) {
    if (entry.value.is_tensor())
      CHECK(scene.manifest.tensors.at(entry.value.tensor_index()).name == entry.name);
    if (entry.name.ends_with(".params")) CHECK(entry.value.as_list().empty());
  }
}

TEST_CASE("a group's options may be attributes of it, and numbers too long are no groups") {
  Scene scene;
  scene.tensor({"model", "w"}, {2});
  scene.tensor({"optim", "state", "w", "exp_avg"}, {2});
  scene.value({"optim", "param_groups", "0@lr"}, Value::real(0.5));
  const Path group = {key_item("optim"), key_item("param_groups"),
                      key_item("77777777777777777777777"), key_item("lr")};
  scene.manifest.state.entries.push_back({dotted(group), group, Value::real(0.5)});
  scene.value({"optim", "param_groups", "77777777777777777777777@lr"}, Value::real(0.5));
  const EntryRole attribute = scene.role("optim.param_groups.0@lr");
  CHECK(attribute.role == Role::kOptimGroup);
  CHECK(attribute.group == 0);
  CHECK(attribute.leaf == "lr");
  for (const std::string end : {".lr", "@lr"})
    CHECK(scene.role("optim.param_groups.77777777777777777777777" + end).group == -1);
}

}  // namespace roles_test

// Optimizer state that stands as one value for each parameter comes apart into leaves.
#include <tessera/state/state_values.h>

#include <catch2/catch.hpp>

namespace state_values_test {

using namespace tessera;

namespace {

Path path_of(const std::vector<std::string>& items) {
  Path path;
  for (const std::string& item : items) path.push_back({PathItem::Kind::kKey, 0, item});
  return path;
}

void add(Manifest& manifest, const std::vector<std::string>& items, Value value) {
  const Path path = path_of(items);
  manifest.state.entries.push_back({dotted(path), path, std::move(value)});
}

std::uint32_t add_tensor(Manifest& manifest, const std::string& name, bool embedded) {
  StoredTensor tensor;
  tensor.name = name;
  tensor.spec = {DType::kFloat32, Shape{2}};
  tensor.embedded = embedded;
  manifest.tensors.push_back(tensor);
  return static_cast<std::uint32_t>(manifest.tensors.size() - 1);
}

Value state(std::uint32_t tensor) {
  ValueDict out;
  out.emplace_back(Value::string("exp_avg"), Value::tensor(tensor));
  out.emplace_back(Value::string("step"), Value::real(2));
  return Value::dict(std::move(out));
}

/// model.a.w, its state as one value, and the group that lists it.
Manifest one_parameter() {
  Manifest manifest;
  add(manifest, {"model", "a.w"}, Value::tensor(add_tensor(manifest, "model.a.w", false)));
  add(manifest, {"optim", "state", "a.w"}, state(add_tensor(manifest, "optim.state.a.w", true)));
  Path params = path_of({"optim", "param_groups"});
  params.push_back({PathItem::Kind::kIndex, 0, ""});
  params.push_back({PathItem::Kind::kKey, 0, "params"});
  manifest.state.entries.push_back({dotted(params), params, Value::list({Value::string("a.w")})});
  return manifest;
}

}  // namespace

TEST_CASE("a parameter's state value becomes its leaves, in its place") {
  Manifest manifest = one_parameter();
  expand_state_values(manifest);
  REQUIRE(manifest.state.entries.size() == 4);
  CHECK(manifest.state.entries[1].name == "optim.state.a.w.exp_avg");
  CHECK(manifest.state.entries[1].path == path_of({"optim", "state", "a.w", "exp_avg"}));
  CHECK(manifest.state.entries[2].name == "optim.state.a.w.step");
  CHECK(manifest.state.entries[2].value == Value::real(2));
  const StoredTensor* tensor = manifest.find("optim.state.a.w.exp_avg");
  REQUIRE(tensor);
  CHECK_FALSE(tensor->embedded);
  CHECK(tensor->kind == TensorKind::kOptim);
}

TEST_CASE("state that is leaves already, and other values, stay as they are") {
  Manifest manifest = one_parameter();
  expand_state_values(manifest);
  add(manifest, {"notes"}, state(add_tensor(manifest, "notes", true)));
  const std::size_t entries = manifest.state.entries.size();
  expand_state_values(manifest);
  CHECK(manifest.state.entries.size() == entries);
  CHECK(manifest.state.entries.back().value.is_dict());
  CHECK(manifest.tensors.back().embedded);
}

TEST_CASE("a tensor that two values hold stays inside them") {
  Manifest manifest = one_parameter();
  add(manifest, {"optim", "state", "b.w"}, state(1));
  expand_state_values(manifest);
  CHECK(manifest.state.entries.size() == 4);
  CHECK(manifest.tensors[1].embedded);
}

}  // namespace state_values_test

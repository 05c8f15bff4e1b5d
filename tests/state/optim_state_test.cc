// Integer ids to names, held against brute force; groups, steps and issues in canonical form.
#include <tessera/base/text.h>
#include <tessera/state/optim_state.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>

#include "tests/support/note_text.h"

namespace optim_state_test {

using namespace tessera;

namespace {

using Ids = std::vector<std::optional<Shape>>;

/// Every way to send the ids of one group to candidates in ascending order.
void all_ways(const Ids& ids, const std::vector<Shape>& candidates, std::size_t k,
              std::int64_t from, std::vector<std::int64_t>& way,
              std::vector<std::vector<std::int64_t>>& ways) {
  if (k == ids.size()) return ways.push_back(way);
  for (auto c = from; c < static_cast<std::int64_t>(candidates.size()); ++c) {
    if (ids[k] && *ids[k] != candidates[static_cast<std::size_t>(c)]) continue;
    way.push_back(c);
    all_ways(ids, candidates, k + 1, c + 1, way, ways);
    way.pop_back();
  }
}

struct Scene {
  Manifest manifest;

  std::uint32_t tensor(const std::string& name, std::vector<std::string> path, Shape shape) {
    StoredTensor stored;
    stored.name = name;
    stored.spec = {DType::kFloat32, std::move(shape)};
    const auto index = static_cast<std::uint32_t>(manifest.tensors.size());
    manifest.tensors.push_back(stored);
    entry(std::move(path), Value::tensor(index));
    return index;
  }
  void entry(std::vector<std::string> keys, Value value) {
    Path path;
    for (const std::string& key : keys)
      path.push_back(is_decimal(key) ? PathItem{PathItem::Kind::kIntKey, std::stoll(key), ""}
                                     : PathItem{PathItem::Kind::kKey, 0, key});
    manifest.state.entries.push_back({dotted(path), path, std::move(value)});
  }
  void weight(const std::string& fqn, Shape shape) {
    tensor("model." + fqn, {"model", fqn}, std::move(shape));
  }
  void leaf(const std::string& key, const std::string& leaf, Shape shape) {
    tensor("optim.state." + key + "." + leaf, {"optim", "state", key, leaf}, std::move(shape));
  }
  void option(const std::string& group, const std::string& name, Value value) {
    entry({"optim", "param_groups", group, name}, std::move(value));
  }
  OptimState canonical() {
    const Roles roles = find_roles(manifest.state);
    assign_kinds(manifest, roles);
    const auto states = canonical_optim_states(manifest, roles);
    REQUIRE(states.size() == 1);
    return states[0];
  }
};

Value ints(std::vector<std::int64_t> numbers) {
  ValueList list;
  for (std::int64_t n : numbers) list.push_back(Value::integer(n));
  return Value::list(std::move(list));
}
Value texts(std::vector<std::string> words) {
  ValueList list;
  for (std::string& word : words) list.push_back(Value::string(std::move(word)));
  return Value::list(std::move(list));
}

std::vector<std::string> codes(const OptimState& optim) {
  std::vector<std::string> found;
  for (const OptimIssue& issue : optim.issues) found.push_back(testing::note_code(issue));
  return found;
}

}  // namespace

TEST_CASE("one group: ids map where brute force maps, certain where it has one answer") {
  const unsigned seed = 20240611;
  std::mt19937 random(seed);
  const auto upto = [&](int n) { return std::uniform_int_distribution<int>(0, n)(random); };
  for (int round = 0; round < 2000; ++round) {
    INFO("seed " << seed << " round " << round);
    std::vector<Shape> candidates;
    for (int i = upto(6); i >= 0; --i) candidates.push_back(Shape{1 + upto(2)});
    Ids ids;
    for (int i = upto(static_cast<int>(candidates.size())); i > 0; --i)
      ids.push_back(upto(4) == 0 ? std::nullopt : std::optional(Shape{1 + upto(2)}));
    std::vector<std::vector<std::int64_t>> ways;
    std::vector<std::int64_t> way;
    all_ways(ids, candidates, 0, 0, way, ways);
    const IdMapping mapping = map_ids(ids, {ids.size()}, candidates);
    CHECK(mapping.complete == !ways.empty());
    CHECK(mapping.certain == (ways.size() == 1));
    if (!ways.empty()) CHECK(std::ranges::find(ways, mapping.candidate) != ways.end());
  }
}

TEST_CASE("groups interleave: each runs through the model's order by itself") {
  // matrices in one group, vectors in the other
  const std::vector<Shape> model = {{4, 3}, {4}, {2, 4}, {2}};
  const IdMapping mapping = map_ids({Shape{4, 3}, Shape{2, 4}, Shape{4}, Shape{2}}, {2, 2}, model);
  CHECK(mapping.candidate == std::vector<std::int64_t>{0, 2, 1, 3});
  CHECK(mapping.complete);
  CHECK(mapping.certain);
}

TEST_CASE("an id takes no parameter twice, over all groups") {
  const IdMapping mapping = map_ids({Shape{4}, Shape{4}, Shape{4}}, {1, 1, 1}, {{4}, {4}});
  CHECK(mapping.candidate == std::vector<std::int64_t>{0, 1, -1});
  CHECK_FALSE(mapping.complete);
  CHECK_FALSE(mapping.certain);
}

TEST_CASE("ids become names through the groups") {
  Scene scene;
  scene.weight("a", {4, 3});
  scene.weight("frozen", {9});
  scene.weight("b", {4});
  scene.leaf("0", "exp_avg", {4, 3});
  scene.leaf("0", "exp_avg_sq", {4, 3});
  scene.leaf("0", "step", Shape{});
  scene.leaf("1", "exp_avg", {4});
  scene.option("0", "lr", Value::real(0.5));
  scene.option("0", "params", ints({0, 1}));
  const OptimState optim = scene.canonical();
  CHECK(optim.dialect == OptimDialect::kById);
  REQUIRE(optim.find("a"));
  CHECK(optim.find("a")->stored_key == "0");
  CHECK(optim.find("a")->inferred);
  CHECK(optim.find("a")->weight == 0);
  CHECK(optim.find("a")->step_origin() == StepOrigin::kParameter);
  CHECK(optim.find("b")->stored_key == "1");
  CHECK(optim.groups.at(0).members == std::vector<std::string>{"a", "b"});
  CHECK(optim.groups.at(0).stored_members == std::vector<std::string>{"0", "1"});
  CHECK(optim.groups.at(0).find("lr")->as_real() == 0.5);
  CHECK_FALSE(optim.groups.at(0).find("params"));
  CHECK(optim.unlisted_weights == std::vector<std::string>{"frozen"});
  CHECK(optim.issues.empty());
}

TEST_CASE("ids that fit nothing, or several ways, are issues") {
  Scene none;
  none.weight("a", {4});
  none.leaf("0", "exp_avg", {5});
  none.option("0", "params", ints({0}));
  CHECK(codes(none.canonical()) == std::vector<std::string>{"OP012"});
  Scene several;
  several.weight("a", {4});
  several.weight("b", {4});
  several.leaf("0", "exp_avg", {4});
  several.option("0", "params", ints({0}));
  CHECK(codes(several.canonical()) == std::vector<std::string>{"OP013"});
  CHECK_FALSE(several.canonical().find("a")->certain);
}

TEST_CASE("unknown and duplicate members of groups are errors") {
  Scene scene;
  scene.weight("a", {4});
  scene.leaf("a", "exp_avg", {4});
  scene.option("0", "params", texts({"a", "ghost"}));
  scene.option("1", "params", texts({"a"}));
  const OptimState optim = scene.canonical();
  CHECK(codes(optim) == std::vector<std::string>{"OP010", "OP011"});
  for (const OptimIssue& issue : optim.issues) CHECK(issue.severity == Severity::kError);
  CHECK(optim.issues[0].parameter == "ghost");
  CHECK(optim.issues[1].parameter == "a");
  CHECK(optim.find("a")->group == 0);
}

TEST_CASE("a step is found on the parameter, in the group, or in both") {
  for (const bool own : {false, true})
    for (const bool group : {false, true}) {
      Scene scene;
      scene.weight("a", {4});
      scene.leaf("a", "exp_avg", {4});
      if (own) scene.leaf("a", "step", Shape{});
      scene.option("0", "params", texts({"a"}));
      if (group) scene.option("0", "step", Value::integer(7));
      const OptimParameter p = *scene.canonical().find("a");
      CHECK(p.step_origin() == (own ? (group ? StepOrigin::kBoth : StepOrigin::kParameter)
                                    : (group ? StepOrigin::kGroup : StepOrigin::kNone)));
      if (group) CHECK(p.group_step.value == 7);
    }
}

TEST_CASE("unknown options and leaves are kept") {
  Scene scene;
  scene.weight("a", {4});
  scene.leaf("a", "exp_avg", {4});
  scene.leaf("a", "my_buffer", {2, 2});
  scene.option("0", "novel", Value::string("x"));
  scene.option("0", "params", texts({"a"}));
  const OptimState optim = scene.canonical();
  CHECK(optim.find("a")->find("my_buffer"));
  CHECK(optim.groups[0].find("novel")->as_string() == "x");
}

TEST_CASE("flattened groups are gathered again by equal options") {
  Scene scene;
  for (const char* fqn : {"a", "b", "c"}) {
    scene.weight(fqn, {4});
    scene.tensor(std::string("optim.state.") + fqn + ".exp_avg",
                 {"optim", std::string("state.") + fqn + ".exp_avg"}, {4});
    scene.entry({"optim", std::string("param_groups.") + fqn + ".lr"},
                Value::real(std::string(fqn) == "b" ? 0.2 : 0.1));
  }
  const OptimState optim = scene.canonical();
  CHECK(optim.dialect == OptimDialect::kFlat);
  REQUIRE(optim.groups.size() == 2);
  CHECK(optim.groups[0].members == std::vector<std::string>{"a", "c"});
  CHECK(optim.groups[1].members == std::vector<std::string>{"b"});
  CHECK(optim.find("b")->group == 1);
}

TEST_CASE("groups stored as one list value read like groups stored apart") {
  Scene scene;
  scene.weight("a", {4});
  scene.leaf("a", "exp_avg", {4});
  scene.entry({"optim", "param_groups"},
              Value::list({Value::dict({{Value::string("params"), texts({"a"})},
                                        {Value::string("lr"), Value::real(0.1)}})}));
  const OptimState optim = scene.canonical();
  REQUIRE(optim.groups.size() == 1);
  CHECK(optim.groups[0].members == std::vector<std::string>{"a"});
  CHECK(optim.groups[0].find("lr")->as_real() == 0.1);
  CHECK(optim.issues.empty());
}

TEST_CASE("the kind is inferred from leaves and options") {
  const auto kind = [](std::vector<std::string> leaves, std::optional<bool> decoupled = {}) {
    Scene scene;
    scene.weight("a", {4});
    for (const std::string& leaf : leaves) scene.leaf("a", leaf, {4});
    if (decoupled) scene.option("0", "decoupled_weight_decay", Value::boolean(*decoupled));
    scene.option("0", "params", texts({"a"}));
    return scene.canonical().kind;
  };
  CHECK(kind({"exp_avg", "exp_avg_sq"}, true) == "AdamW");
  CHECK(kind({"exp_avg", "exp_avg_sq"}, false) == "Adam");
  CHECK(kind({"exp_avg", "exp_avg_sq"}) == "Adam or AdamW");
  CHECK(kind({"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}, true) == "AdamW with amsgrad");
  CHECK(kind({"momentum_buffer"}) == "SGD with momentum");
  CHECK(kind({"exp_avg", "exp_inf"}) == "Adamax");
  CHECK(kind({"square_avg"}) == "RMSprop");
  CHECK(kind({"sum"}) == "Adagrad");
}

TEST_CASE("an id without state gets what the other groups leave") {
  const std::vector<Shape> model = {{4, 3}, {4}, {2, 4}, {2}};
  const IdMapping mapping = map_ids({std::nullopt, Shape{2, 4}, Shape{4}, Shape{2}}, {2, 2}, model);
  CHECK(mapping.candidate == std::vector<std::int64_t>{0, 2, 1, 3});
  CHECK(mapping.certain);
}

}  // namespace optim_state_test

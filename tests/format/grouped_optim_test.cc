// Which parameters can share a flat buffer, and in which order their leaves stand then, against
// every leaf of every parameter looked at by hand.
#include "lib/format/torch_files/grouped_optim.h"

#include <tessera/base/error.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>
#include <map>
#include <random>
#include <set>

#include "lib/state/same_bytes.h"

namespace tessera::grouped_optim_test {
namespace {

using Form = GroupedLeaf::Form;

/// A tensor that lies at `offset` of file 0.
std::uint32_t add_tensor(Manifest& manifest, DType dtype, const Shape& shape,
                         std::uint64_t offset) {
  StoredTensor tensor;
  tensor.spec = {dtype, shape};
  tensor.first_chunk = manifest.chunks.size();
  tensor.chunk_count = 1;
  Source source;
  source.kind = Source::Kind::kExtent;
  source.offset = offset;
  source.length = static_cast<std::uint64_t>(tensor.spec.size_bytes());
  manifest.chunks.add(Chunk::whole_of(Box::whole(shape)), source);
  manifest.tensors.push_back(tensor);
  return static_cast<std::uint32_t>(manifest.tensors.size() - 1);
}

struct Leaf {
  std::string name;
  Value value;
  std::uint64_t offset = 0;  // where its tensor lies
};
struct Parameter {
  Shape shape;
  std::vector<Leaf> leaves;
  std::int64_t group = 0;
};
struct Scene {
  Manifest manifest;
  std::vector<std::pair<std::uint32_t, double>> steps;
  std::vector<Parameter> parameters;
};

/// Few kinds of everything, so that parameters often agree and often do not.
Scene random_scene(std::mt19937_64& random) {
  const auto below = [&](std::uint64_t n) { return random() % n; };
  const bool alike = below(2) == 0;
  Scene scene;
  scene.parameters.resize(1 + below(4));
  for (Parameter& parameter : scene.parameters) {
    const Shape shapes[] = {Shape{2, 3}, Shape{6}, Shape{}};
    parameter.shape = shapes[below(3)];
    parameter.group = static_cast<std::int64_t>(alike ? 0 : below(2));
    for (const std::string name : {"exp_avg", "exp_avg_sq", "step", "factor", "kind"}) {
      if (!alike && below(8) == 0) continue;
      Leaf leaf{name, {}, 0};
      if (name == "kind") {
        leaf.value = Value::integer(static_cast<std::int64_t>(alike ? 0 : below(6) / 5));
      } else {
        const bool single = name == "step" || name == "factor";
        const Shape shape = name == "step" ? Shape{} : single ? Shape{5} : parameter.shape;
        const DType dtype = !alike && below(8) == 0 ? DType::kFloat64 : DType::kFloat32;
        leaf.offset = single && below(2) == 0 ? 8 : 64 * (1 + scene.manifest.tensors.size());
        const std::uint32_t tensor = add_tensor(scene.manifest, dtype, shape, leaf.offset);
        if (name == "step" && below(4) > 0)
          scene.steps.emplace_back(tensor, static_cast<double>(below(alike ? 1 : 2)));
        leaf.value =
            name == "step" && !alike && below(6) == 0 ? Value::real(1) : Value::tensor(tensor);
      }
      parameter.leaves.push_back(std::move(leaf));
    }
    std::ranges::shuffle(parameter.leaves, random);
  }
  return scene;
}

const Leaf* find(const Parameter& parameter, const std::string& name) {
  const auto found = std::ranges::find(parameter.leaves, name, &Leaf::name);
  return found == parameter.leaves.end() ? nullptr : &*found;
}

/// By hand: can `b` stand in the same buffers as `a`?
bool shares(const Scene& scene, const Parameter& a, const Parameter& b, bool numbers) {
  std::set<std::string> names;
  for (const Parameter* parameter : {&a, &b})
    for (const Leaf& leaf : parameter->leaves) names.insert(leaf.name);
  for (const std::string& name : names) {
    const Leaf *x = find(a, name), *y = find(b, name);
    if (!x || !y) return false;
    if (!x->value.is_tensor() || !y->value.is_tensor()) {
      if (numbers && !(x->value == y->value)) return false;
      continue;
    }
    const std::uint32_t i = x->value.tensor_index(), j = y->value.tensor_index();
    const TensorSpec &s = scene.manifest.tensors[i].spec, &t = scene.manifest.tensors[j].spec;
    if (name.starts_with("exp_avg")) {
      if (s.dtype != t.dtype) return false;
      continue;
    }
    const std::map<std::uint32_t, double> steps(scene.steps.begin(), scene.steps.end());
    const bool one_place = x->offset == y->offset;
    const bool one_number = steps.contains(i) && steps.contains(j) && steps.at(i) == steps.at(j);
    if (numbers && (s.dtype != t.dtype || (!one_place && !one_number))) return false;
  }
  return a.group == b.group;
}

GroupedOptimizer grouped(const Scene& scene) {
  GroupedOptimizer out(scene.manifest, scene.steps);
  for (std::size_t p = 0; p < scene.parameters.size(); ++p) {
    out.add_parameter("p" + std::to_string(p), scene.parameters[p].shape);
    for (const Leaf& leaf : scene.parameters[p].leaves) out.add_leaf(p, leaf.name, leaf.value);
  }
  for (std::int64_t g = 0; g < 2; ++g) {
    OptimizerGroup group;
    for (std::size_t p = 0; p < scene.parameters.size(); ++p)
      if (scene.parameters[p].group == g) group.members.push_back(p);
    out.add_group(std::move(group));
  }
  return out;
}

}  // namespace

TEST_CASE("parameters share a buffer where every leaf, looked at by hand, agrees") {
  constexpr unsigned kSeed = 2906;
  INFO("seed " << kSeed);
  std::mt19937_64 random(kSeed);
  int together = 0, apart = 0;
  for (int round = 0; round < 4000; ++round) {
    CAPTURE(round);
    const Scene scene = random_scene(random);
    const bool numbers = round % 3 > 0;
    GroupedOptimizer optimizer = grouped(scene);
    std::vector<std::size_t> members;
    for (std::size_t p = 0; p < scene.parameters.size(); ++p) members.push_back(p);
    const auto odd = std::ranges::find_if_not(members, [&](std::size_t p) {
      return shares(scene, scene.parameters[0], scene.parameters[p], numbers);
    });
    const auto why = optimizer.unite(members, numbers);
    REQUIRE(why.has_value() == (odd != members.end()));
    if (why) {
      ++apart;
      CHECK_THAT(why->why, Catch::StartsWith("\"p0\" and \"p" + std::to_string(*odd) +
                                             "\" share a flat buffer, but "));
      continue;
    }
    ++together;
    // Leaf i of all is one leaf, and each still has its own tensors.
    for (const std::size_t p : members) {
      const GroupedState &first = optimizer.state(0), &mine = optimizer.state(p);
      REQUIRE(mine.size() == scene.parameters[p].leaves.size());
      for (std::size_t i = 0; i < mine.size(); ++i) {
        REQUIRE(mine[i].name == first[i].name);
        if (numbers) REQUIRE(mine[i].form == first[i].form);
        REQUIRE(mine[i].value == find(scene.parameters[p], mine[i].name)->value);
        const bool shaped = mine[i].name.starts_with("exp_avg");
        REQUIRE(shaped == (mine[i].form == Form::kSharded));
      }
    }
  }
  CHECK(together > 500);
  CHECK(apart > 500);
}

TEST_CASE("the reason names what differs") {
  Manifest manifest;
  const auto tensor = [&](DType dtype, const Shape& shape) {
    return Value::tensor(add_tensor(manifest, dtype, shape, 64 * (1 + manifest.tensors.size())));
  };
  const Value f4 = tensor(DType::kFloat32, {2}), bf16 = tensor(DType::kBFloat16, {2}),
              step = tensor(DType::kFloat32, {}), other_step = tensor(DType::kFloat32, {});
  const auto why = [&](const std::vector<std::pair<std::string, Value>>& a,
                       const std::vector<std::pair<std::string, Value>>& b, bool one_group) {
    GroupedOptimizer optimizer(manifest, {});
    for (const auto* leaves : {&a, &b}) {
      const std::size_t p = optimizer.add_parameter(leaves == &a ? "a" : "b", Shape{2});
      for (const auto& [name, value] : *leaves) optimizer.add_leaf(p, name, value);
    }
    optimizer.add_group(
        {{}, one_group ? std::vector<std::size_t>{0, 1} : std::vector<std::size_t>{0}});
    const auto apart = optimizer.unite(std::vector<std::size_t>{0, 1});
    CHECK((!apart || apart->number == (apart->why.find("not the same") != std::string::npos)));
    return apart ? apart->why.substr(apart->why.find("but ") + 4) : "";
  };
  CHECK(why({{"m", f4}, {"step", step}}, {{"step", step}, {"m", f4}}, true).empty());
  CHECK(why({{"m", f4}}, {{"m", bf16}}, true) ==
        "\"m\" is float32 in one and bfloat16 in the other");
  CHECK(why({{"m", f4}}, {}, true) == "only one of them has \"m\"");
  CHECK(why({}, {{"v", f4}}, true) == "only one of them has \"v\"");
  CHECK(why({{"m", f4}}, {{"m", step}}, true) ==
        "\"m\" has its parameter's shape in one of them alone");
  CHECK(why({{"step", step}}, {{"step", other_step}}, true) == "\"step\" is not the same in both");
  CHECK(why({{"m", f4}}, {{"m", f4}}, false) == "they are in two groups");
}

TEST_CASE("leaves have the form that files can give them") {
  Manifest manifest;
  const auto tensor = [&](const Shape& shape) {
    return Value::tensor(add_tensor(manifest, DType::kFloat32, shape, 64));
  };
  GroupedOptimizer optimizer(manifest, {});
  optimizer.add_parameter("matrix", Shape{2, 3});
  optimizer.add_parameter("scalar", Shape{});
  CHECK(optimizer.form_of(0, "exp_avg", tensor({2, 3})) == Form::kSharded);
  CHECK(optimizer.form_of(0, "row", tensor({2})) == Form::kTensor);
  CHECK(optimizer.form_of(0, "step", tensor({})) == Form::kScalar);
  CHECK(optimizer.form_of(1, "step", tensor({})) == Form::kScalar);  // though its shape is one
  CHECK(optimizer.form_of(1, "exp_avg", tensor({})) == Form::kSharded);
  CHECK(optimizer.form_of(0, "history", Value::list({tensor({2}), tensor({3})})) == Form::kList);
  CHECK(optimizer.form_of(0, "history", Value::list({})) == Form::kValue);
  CHECK(optimizer.form_of(0, "kind", Value::string("x")) == Form::kValue);
  optimizer.add_item(0, "history", tensor({2}));
  optimizer.add_item(0, "history", tensor({3}));
  REQUIRE(optimizer.state(0).size() == 1);
  CHECK(optimizer.state(0)[0].form == Form::kList);
  CHECK(optimizer.state(0)[0].tensors.size() == 2);
  CHECK_THROWS_AS(optimizer.add_item(0, "history", Value::integer(1)), Error);
}

TEST_CASE("what no file has room for is refused by name, with what to do") {
  const auto status = [](const std::function<void()>& refuse) {
    try {
      refuse();
    } catch (const Error& error) {
      CHECK(error.code() == Code::kUnsupported);
      return error.status();
    }
    return Status{};
  };
  const Status second = status([] { refuse_second_optimizer("gen", "critic", "an engine"); });
  CHECK(second.message ==
        "there are several optimizers (\"gen\", \"critic\"); an engine holds one");
  CHECK(second.hint == "leave one out: --exclude 'critic.*'");
  CHECK(status([] { refuse_second_optimizer("gen", "", "x"); }).hint ==
        "leave one out: --exclude 'state.*'");
  const Status unknown = status([] { refuse_unknown_parameter("head.w"); });
  CHECK_THAT(unknown.message, Catch::Contains("\"head.w\", which no parameter of the model"));
  CHECK_THAT(unknown.hint, Catch::Contains("--exclude '*head.w*'"));
  CHECK_THAT(status([] { refuse_unlisted_parameter("head.w"); }).message,
             Catch::Contains("\"head.w\", which no group lists"));
}

TEST_CASE("groups are options, then params") {
  const std::vector<OptimizerGroup> groups = {{{{Value::string("lr"), Value::real(0.5)}}, {0, 1}},
                                              {{}, {}}};
  const Value value = param_groups_value(groups, {{Value::integer(0), Value::integer(1)}, {}},
                                         [](const Value& v) { return v; });
  const Value first =
      Value::dict({{Value::string("lr"), Value::real(0.5)},
                   {Value::string("params"), Value::list({Value::integer(0), Value::integer(1)})}});
  const Value second = Value::dict({{Value::string("params"), Value::list({})}});
  CHECK(value == Value::list({first, second}));
}

TEST_CASE("tensors are the same where they are read from one place in one way") {
  Manifest manifest;
  const std::uint32_t a = add_tensor(manifest, DType::kFloat32, {2, 3}, 64);
  const std::uint32_t same = add_tensor(manifest, DType::kFloat32, {2, 3}, 64);
  const std::uint32_t elsewhere = add_tensor(manifest, DType::kFloat32, {2, 3}, 128);
  const std::uint32_t reshaped = add_tensor(manifest, DType::kFloat32, {6}, 64);
  CHECK(same_bytes(manifest, a, a));
  CHECK(same_bytes(manifest, a, same));
  CHECK_FALSE(same_bytes(manifest, a, elsewhere));
  CHECK_FALSE(same_bytes(manifest, a, reshaped));
  // Of bytes in the manifest itself, `side` says which: equal lengths prove nothing.
  const auto inlined = [&](std::uint32_t side) {
    const std::uint32_t tensor = add_tensor(manifest, DType::kFloat32, {}, 0);
    Source& source = manifest.chunks.source(manifest.tensors[tensor].first_chunk);
    source.kind = Source::Kind::kInline;
    source.side = side;
    return tensor;
  };
  const std::uint32_t one = inlined(0), other = inlined(1);
  CHECK_FALSE(same_stored(manifest, one, other));
  CHECK(same_stored(manifest, one, inlined(0)));
}

}  // namespace tessera::grouped_optim_test

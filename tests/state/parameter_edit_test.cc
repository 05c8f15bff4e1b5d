// What follows a parameter that is fused or cut apart: names in every dialect, options, groups,
// ids; and what cannot.
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/state/parameter_edit.h>

#include <catch2/catch.hpp>
#include <set>

namespace parameter_edit_test {

using namespace tessera;

namespace {

struct Scene {
  Manifest manifest;

  Scene& tensor(std::vector<std::string> items, const Shape& shape) {
    StoredTensor stored;
    stored.spec = {DType::kFloat32, shape};
    stored.first_chunk = manifest.chunks.size();
    stored.chunk_count = 1;
    stored.kind = items[0] == "model" ? TensorKind::kParam : TensorKind::kOptim;
    Source source;
    source.kind = Source::Kind::kExtent;
    source.offset = 1000 * manifest.tensors.size();  // apart: the same place would be a tie
    source.length = static_cast<std::uint64_t>(stored.spec.size_bytes());
    manifest.chunks.add(Chunk::whole_of(Box::whole(shape)), source);
    const Path path = to_path(items);
    stored.name = dotted(path);
    manifest.state.entries.push_back(
        {stored.name, path, Value::tensor(static_cast<std::uint32_t>(manifest.tensors.size()))});
    manifest.tensors.push_back(stored);
    return *this;
  }
  Scene& value(const std::vector<std::string>& items, const Value& value) {
    const Path path = to_path(items);
    manifest.state.entries.push_back({dotted(path), path, value});
    return *this;
  }
  std::set<std::string> names() const {
    std::set<std::string> out;
    for (const StateEntry& entry : manifest.state.entries) out.insert(entry.name);
    return out;
  }
  static Path to_path(const std::vector<std::string>& items) {
    Path path;
    for (const std::string& item : items)
      path.push_back(is_decimal(item) ? PathItem{PathItem::Kind::kIntKey, std::stoll(item), ""}
                                      : PathItem{PathItem::Kind::kKey, 0, item});
    return path;
  }
};

template <class T>
Value list_of(const std::vector<T>& items, Value (*make)(T)) {
  ValueList list;
  for (const T& item : items) list.push_back(make(item));
  return Value::list(std::move(list));
}

TensorPiece rows(std::uint32_t source, std::int64_t begin, std::int64_t count, std::int64_t to) {
  TensorPiece piece;
  piece.source = source;
  piece.box = {{begin, 0}, Shape{count, 3}};
  piece.origin = {to, 0};
  return piece;
}

ParameterEdit fuse_ab() {
  ParameterEdit edit;
  edit.olds = {{"a", {2, 3}}, {"b", {4, 3}}};
  edit.made = {{"ab", {6, 3}, {rows(0, 0, 2, 0), rows(1, 0, 4, 2)}}};
  return edit;
}

ParameterEdit cut_c() {
  ParameterEdit edit;
  edit.olds = {{"c", {4, 3}}};
  edit.made = {{"c.0", {2, 3}, {rows(0, 0, 2, 0)}}, {"c.1", {2, 3}, {rows(0, 2, 2, 0)}}};
  return edit;
}

bool always(std::uint32_t, std::uint32_t) { return true; }

Scene by_id() {
  Scene scene;
  scene.tensor({"model", "a"}, {2, 3}).tensor({"model", "b"}, {4, 3});
  scene.tensor({"model", "x"}, {5, 3}).tensor({"model", "c"}, {4, 3});
  int id = 0;
  for (const Shape& shape : {Shape{2, 3}, Shape{4, 3}, Shape{5, 3}, Shape{4, 3}}) {
    scene.tensor({"optim", "state", std::to_string(id), "exp_avg"}, shape);
    scene.tensor({"optim", "state", std::to_string(id++), "step"}, Shape{});
  }
  scene.value({"optim", "param_groups", "0", "lr"}, Value::real(0.1));
  scene.value({"optim", "param_groups", "0", "params"},
              list_of<std::int64_t>({0, 1, 2, 3}, &Value::integer));
  return scene;
}

}  // namespace

TEST_CASE("ids are numbered anew in the order of the groups") {
  Scene scene = by_id();
  const std::vector<ParameterEdit> edits{fuse_ab(), cut_c()};
  edit_parameters(scene.manifest, edits, always);
  CHECK(scene.names() == std::set<std::string>{
                             "model.ab", "model.x", "model.c.0", "model.c.1",
                             "optim.state.0.exp_avg", "optim.state.0.step", "optim.state.1.exp_avg",
                             "optim.state.1.step", "optim.state.2.exp_avg", "optim.state.2.step",
                             "optim.state.3.exp_avg", "optim.state.3.step",
                             "optim.param_groups.0.lr", "optim.param_groups.0.params"});
  const auto shape = [&](const std::string& name) { return scene.manifest.find(name)->spec.shape; };
  CHECK(shape("optim.state.0.exp_avg") == Shape{6, 3});
  CHECK(shape("optim.state.1.exp_avg") == Shape{5, 3});
  CHECK(shape("optim.state.3.exp_avg") == Shape{2, 3});
  const StateEntry* params = scene.manifest.state.find("optim.param_groups.0.params");
  CHECK(params->value == list_of<std::int64_t>({0, 1, 2, 3}, &Value::integer));
  for (const StateEntry& entry : scene.manifest.state.entries)
    if (entry.name.starts_with("optim.state."))
      CHECK(entry.path[2].kind == PathItem::Kind::kIntKey);
}

TEST_CASE("a parameter without successor goes with its state and its place") {
  Scene scene = by_id();
  ParameterEdit drop;
  drop.olds = {{"b", {4, 3}}};
  const std::vector<ParameterEdit> edits{drop};
  edit_parameters(scene.manifest, edits, always);
  CHECK_FALSE(scene.names().contains("model.b"));
  CHECK_FALSE(scene.names().contains("optim.state.3.exp_avg"));
  CHECK(scene.manifest.find("optim.state.1.exp_avg")->spec.shape == Shape{5, 3});
  CHECK(scene.manifest.state.find("optim.param_groups.0.params")->value.as_list().size() == 3);
}

TEST_CASE("names, options per parameter and lists of names follow") {
  Scene scene;
  scene.tensor({"model", "a"}, {2, 3})
      .tensor({"model", "b"}, {4, 3})
      .tensor({"model", "c"}, {4, 3});
  for (const auto& [name, rows_of] : {std::pair{"a", 2}, std::pair{"b", 4}, std::pair{"c", 4}}) {
    scene.tensor({"optim", std::string("state.") + name + ".exp_avg"}, {rows_of, 3});
    scene.tensor({"optim", std::string("state.") + name + ".step"}, Shape{});
    scene.value({"optim", std::string("param_groups.") + name + ".lr"}, Value::real(0.1));
  }
  const std::vector<ParameterEdit> edits{fuse_ab(), cut_c()};
  edit_parameters(scene.manifest, edits, always);
  CHECK(scene.names().contains("optim.state.ab.exp_avg"));
  CHECK(scene.names().contains("optim.param_groups.ab.lr"));
  CHECK(scene.names().contains("optim.state.c.1.step"));
  CHECK(scene.names().size() == 3 + 3 * 3);
  Scene groups;
  groups.tensor({"model", "a"}, {2, 3})
      .tensor({"model", "b"}, {4, 3})
      .tensor({"model", "x"}, {1, 3});
  for (const auto& [name, rows_of] : {std::pair{"a", 2}, std::pair{"b", 4}})
    groups.tensor({"optim", "state", name, "exp_avg"}, {rows_of, 3});
  groups.value({"optim", "param_groups", "0", "params"},
               list_of<std::string>({"a", "x", "b"}, &Value::string));
  const std::vector<ParameterEdit> fuse{fuse_ab()};
  edit_parameters(groups.manifest, fuse, always);
  CHECK(groups.manifest.state.find("optim.param_groups.0.params")->value ==
        list_of<std::string>({"ab", "x"}, &Value::string));
}

TEST_CASE("what cannot become one parameter is refused by name") {
  const std::vector<ParameterEdit> fuse{fuse_ab()};
  const auto message = [&](Scene& scene, const SameTensors& same) -> std::string {
    try {
      edit_parameters(scene.manifest, fuse, same);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  Scene steps = by_id();
  CHECK_THAT(message(steps, [](auto, auto) { return false; }), Catch::Contains("differ"));
  Scene apart;
  apart.tensor({"model", "a"}, {2, 3}).tensor({"model", "b"}, {4, 3});
  apart.tensor({"optim", "state", "a", "exp_avg"}, {2, 3});
  CHECK_THAT(message(apart, always), Catch::Contains("cannot become one"));
  Scene factored;
  factored.tensor({"model", "a"}, {2, 3}).tensor({"model", "b"}, {4, 3});
  factored.tensor({"optim", "state", "a", "exp_avg_sq_row"}, {2});
  factored.tensor({"optim", "state", "b", "exp_avg_sq_row"}, {4});
  CHECK_THAT(message(factored, always), Catch::Contains("does not have its parameter's shape"));
  Scene groups;
  groups.tensor({"model", "a"}, {2, 3}).tensor({"model", "b"}, {4, 3});
  for (const auto& [name, rows_of] : {std::pair{"a", 2}, std::pair{"b", 4}})
    groups.tensor({"optim", "state", name, "exp_avg"}, {rows_of, 3});
  groups.value({"optim", "param_groups", "0", "params"},
               list_of<std::string>({"a"}, &Value::string));
  groups.value({"optim", "param_groups", "1", "params"},
               list_of<std::string>({"b"}, &Value::string));
  CHECK_THAT(message(groups, always), Catch::Contains("one optimizer group"));
}

}  // namespace parameter_edit_test

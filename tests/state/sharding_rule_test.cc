// Which tensors a sharded target splits.
#include <tessera/state/roles.h>
#include <tessera/state/sharding_rule.h>

#include <catch2/catch.hpp>

namespace sharding_rule_test {

using namespace tessera;

namespace {

class Scene {
 public:
  explicit Scene(std::optional<std::int64_t> world_size) { manifest.world_size = world_size; }

  /// A tensor cut along dim 0 at `cuts` (none: one chunk), each piece stored `copies` times.
  Scene& tensor(std::vector<std::string> keys, Shape shape, std::vector<std::int64_t> cuts = {},
                int copies = 1) {
    Path path;
    for (const std::string& key : keys) path.push_back({PathItem::Kind::kKey, 0, key});
    StoredTensor stored;
    stored.name = dotted(path);
    stored.spec = {DType::kFloat32, shape};
    stored.first_chunk = manifest.chunks.size();
    std::vector<Box> boxes;
    if (cuts.empty()) {
      boxes.push_back(Box::whole(shape));
    } else {
      std::int64_t begin = 0;
      cuts.push_back(shape[0]);
      for (std::int64_t end : cuts) {
        Box box = Box::whole(shape);
        box.origin[0] = begin;
        std::vector<std::int64_t> extents(shape.extents().begin(), shape.extents().end());
        extents[0] = end - begin;
        box.shape = Shape(std::move(extents));
        boxes.push_back(box);
        begin = end;
      }
    }
    for (const Box& box : boxes)
      for (int i = 0; i < copies; ++i) {
        manifest.chunks.add(Chunk::whole_of(box), {});
        ++stored.chunk_count;
      }
    manifest.state.entries.push_back(
        {stored.name, path, Value::tensor(static_cast<std::uint32_t>(manifest.tensors.size()))});
    manifest.tensors.push_back(std::move(stored));
    return *this;
  }

  bool sharded(const std::string& name, std::vector<std::string> replicate = {}) {
    assign_kinds(manifest, find_roles(manifest.state));
    const auto all = sharded_tensors(manifest, replicate);
    for (std::size_t i = 0; i < manifest.tensors.size(); ++i) {
      if (manifest.tensors[i].name != name) continue;
      CHECK(is_sharded(manifest, manifest.tensors[i], replicate) == all[i]);
      return all[i];
    }
    FAIL("no " << name);
    return false;
  }

  Manifest manifest;
};

}  // namespace

TEST_CASE("more than one distinct chunk makes a sharded tensor, empty ones count") {
  Scene scene(4);
  scene.tensor({"model", "split"}, {8}, {4})
      .tensor({"model", "one"}, {8})
      .tensor({"model", "copies"}, {8}, {}, 4)
      .tensor({"model", "with_empty"}, {3}, {3})
      .tensor({"model", "none"}, Shape{0, 4}, {0});
  CHECK(scene.sharded("model.split"));
  CHECK_FALSE(scene.sharded("model.one"));
  CHECK_FALSE(scene.sharded("model.copies"));
  CHECK(scene.sharded("model.with_empty"));
  CHECK_FALSE(scene.sharded("model.none"));  // two empty chunks of one place are one
}

TEST_CASE("a replicate glob wins over everything") {
  Scene scene(4);
  scene.tensor({"model", "split"}, {8}, {4});
  scene.manifest.tensors[0].always_sharded = true;
  CHECK(scene.sharded("model.split"));
  CHECK_FALSE(scene.sharded("model.split", {"model.*"}));
  CHECK(scene.sharded("model.split", {"other.*"}));
}

TEST_CASE("our own manifest's word makes one chunk a sharded tensor, a scalar never") {
  Scene scene(4);
  scene.tensor({"model", "one"}, {8}).tensor({"model", "scalar"}, Shape{});
  for (StoredTensor& tensor : scene.manifest.tensors) tensor.always_sharded = true;
  CHECK(scene.sharded("model.one"));
  CHECK_FALSE(scene.sharded("model.scalar"));
}

TEST_CASE("one rank: parameters, and state of a parameter's shape") {
  for (const std::optional<std::int64_t> world :
       {std::optional<std::int64_t>(), std::optional<std::int64_t>(1)}) {
    Scene scene(world);
    scene.tensor({"model", "w"}, {8, 2})
        .tensor({"model", "scale"}, Shape{})
        .tensor({"model", "norm.running_mean"}, {8})
        .tensor({"optim", "state", "w", "exp_avg"}, {8, 2})
        .tensor({"optim", "state", "w", "exp_avg_sq_row"}, {8})
        .tensor({"optim", "state", "w", "step"}, Shape{})
        .tensor({"rng"}, {16});
    scene.manifest.tensors.back().spec.dtype = DType::kUInt8;
    CHECK(scene.sharded("model.w"));
    CHECK_FALSE(scene.sharded("model.scale"));
    CHECK_FALSE(scene.sharded("model.norm.running_mean"));
    CHECK(scene.sharded("optim.state.w.exp_avg"));
    CHECK_FALSE(scene.sharded("optim.state.w.exp_avg_sq_row"));
    CHECK_FALSE(scene.sharded("optim.state.w.step"));
    CHECK_FALSE(scene.sharded("rng"));
  }
}

TEST_CASE("several ranks: what is one chunk stays one") {
  Scene scene(2);
  scene.tensor({"model", "w"}, {8, 2}).tensor({"optim", "state", "w", "exp_avg"}, {8, 2});
  CHECK_FALSE(scene.sharded("model.w"));
  CHECK_FALSE(scene.sharded("optim.state.w.exp_avg"));
}

TEST_CASE("tensors inside values are never split") {
  Scene scene(1);
  scene.tensor({"model", "w"}, {8, 2});
  scene.manifest.tensors[0].embedded = true;
  CHECK_FALSE(scene.sharded("model.w"));
}

}  // namespace sharding_rule_test

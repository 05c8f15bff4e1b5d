#pragma once
// FairScale checkpoints made up by a test the slow, obvious way: every value is a function of its
// name and place, every shard is cut element by element.
#include <fmt/format.h>
#include <tessera/format/fairscale_fsdp.h>
#include <tessera/reshard/tensor_reader.h>
#include <tessera/storage/memory_file_system.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/rank_archive.h"
#include "tests/support/written_checkpoint.h"

namespace tessera::testing {

/// Element `i` of leaf `leaf` ("" = the weight) of a parameter. Exact in float32.
inline float scene_value(const std::string& fqn, const std::string& leaf, std::int64_t i) {
  std::uint32_t h = 2166136261u;
  for (char c : fqn + "/" + leaf) h = (h ^ static_cast<unsigned char>(c)) * 16777619u;
  return static_cast<float>((h + static_cast<std::uint32_t>(i) * 2654435761u) % 1000003u) / 64.0f;
}

struct SceneParameter {
  std::string name;
  Shape shape;
};

struct SceneWrapper {
  std::string path;
  std::vector<SceneParameter> parameters;
  bool flat = true;
  bool used = true;  // false: the optimizer has no state for it
  bool no_broadcast = false;
  std::vector<std::pair<std::string, std::string>> shared = {};
};

struct Scene {
  std::vector<SceneWrapper> wrappers;
  std::int64_t world_size = 2;
  std::string weights_key = "weights";
  std::string metadata_key = "meta";
  std::string optimizer_key = "optim";  // "": none
  std::vector<std::string> leaves = {"exp_avg", "exp_avg_sq"};
  std::string flat_name = "flat_param_0";
  std::string segment = {};  // put before every name: "_fsdp_wrapped_module."
  std::string file = "rank_{}.pt";
  bool older_metadata = false;
  float padding = 0;
  std::function<float(std::int64_t rank)> step = [](std::int64_t) { return 5.0f; };
  /// Last word on a rank's root.
  std::function<void(std::int64_t rank, ValueDict& root, RankArchive& archive)> edit = {};

  std::string fqn(const SceneWrapper& wrapper, const std::string& name) const {
    return wrapper.path.empty() ? name : wrapper.path + "." + name;
  }
};

/// A backing parameter of the scene.
struct SceneBacking {
  const SceneWrapper* wrapper = nullptr;
  std::string name;
  std::vector<const SceneParameter*> parameters;
  std::int64_t numel = 0;
};

inline std::vector<SceneBacking> backings_of(const Scene& scene) {
  std::vector<SceneBacking> out;
  for (const SceneWrapper& wrapper : scene.wrappers) {
    if (wrapper.flat && !wrapper.parameters.empty())
      out.push_back({&wrapper, scene.flat_name, {}, 0});
    for (const SceneParameter& parameter : wrapper.parameters) {
      if (!wrapper.flat) out.push_back({&wrapper, parameter.name, {}, 0});
      out.back().parameters.push_back(&parameter);
      out.back().numel += parameter.shape.numel();
    }
  }
  return out;
}

/// As verbs that report damage read.
inline ReadOptions tolerant() {
  ReadOptions options;
  options.tolerate_damage = true;
  return options;
}

class SceneFiles {
 public:
  explicit SceneFiles(const Scene& scene) : scene_(scene), backings_(backings_of(scene)) {}

  Bytes rank(std::int64_t r) const {
    RankArchive archive;
    ValueDict weights, root;
    for (const SceneBacking& b : backings_)
      weights.emplace_back(text(scene_.segment + scene_.fqn(*b.wrapper, b.name)),
                           shard(archive, b, "", r));
    weights.emplace_back(text("count"), archive.tensor({2}, {1, 2}));
    root.emplace_back(text(scene_.weights_key), Value::ordered_dict(std::move(weights), Value()));
    root.emplace_back(text(scene_.metadata_key), scene_.older_metadata ? older(r) : metadata(r));
    if (!scene_.optimizer_key.empty())
      root.emplace_back(text(scene_.optimizer_key), optimizer(archive, r));
    if (scene_.edit) scene_.edit(r, root, archive);
    return archive.render(Value::dict(std::move(root)), "rank");
  }

 private:
  std::int64_t chunk(const SceneBacking& b) const {
    return b.wrapper->no_broadcast ? b.numel
                                   : (b.numel + scene_.world_size - 1) / scene_.world_size;
  }
  /// Elements of the buffer on rank r, one by one; padding behind them.
  Value shard(RankArchive& archive, const SceneBacking& b, const std::string& leaf,
              std::int64_t r) const {
    std::vector<float> all;
    for (const SceneParameter* p : b.parameters)
      for (std::int64_t i = 0; i < p->shape.numel(); ++i)
        all.push_back(scene_value(scene_.fqn(*b.wrapper, p->name), leaf, i));
    if (b.wrapper->no_broadcast) r = 0;
    std::vector<float> mine;
    for (std::int64_t i = r * chunk(b); i < (r + 1) * chunk(b); ++i)
      mine.push_back(i < b.numel ? all[static_cast<std::size_t>(i)] : scene_.padding);
    if (scene_.world_size == 1 && !b.wrapper->flat)
      return archive.tensor(b.parameters[0]->shape, mine);
    return archive.tensor(Shape{chunk(b)}, mine);
  }
  std::int64_t padding(const SceneBacking& b, std::int64_t r) const {
    std::int64_t real = 0;
    for (std::int64_t i = r * chunk(b); i < (r + 1) * chunk(b); ++i) real += i < b.numel;
    return b.wrapper->no_broadcast ? 0 : chunk(b) - real;
  }
  void describe(const SceneBacking& b, ValueList& names, ValueList& shapes,
                ValueList& numels) const {
    for (const SceneParameter* p : b.parameters) {
      names.push_back(text(scene_.segment + p->name));
      shapes.push_back(Value::size({p->shape.extents().begin(), p->shape.extents().end()}));
      numels.push_back(number(p->shape.numel()));
    }
  }
  Value metadata(std::int64_t r) const {
    ValueList wrappers;
    for (const SceneWrapper& wrapper : scene_.wrappers) {
      ValueDict params;
      for (const SceneBacking& b : backings_) {
        if (b.wrapper != &wrapper) continue;
        ValueList names, shapes, numels;
        describe(b, names, shapes, numels);
        params.emplace_back(text(b.name), dict({{"names", Value::list(names)},
                                                {"shapes", Value::list(shapes)},
                                                {"numels", Value::list(numels)},
                                                {"padding", number(padding(b, r))}}));
      }
      ValueList shared;
      for (const auto& [from, to] : wrapper.shared)
        shared.push_back(Value::list({text(from), text(to)}, Value::Kind::kTuple));
      wrappers.push_back(dict({{"fsdp_path", text(scene_.segment + wrapper.path)},
                               {"params", Value::dict(std::move(params))},
                               {"no_broadcast_optim_state", Value::boolean(wrapper.no_broadcast)},
                               {"shared_param_info", Value::list(std::move(shared))}}));
    }
    return dict({{"param_metadata", Value::list(std::move(wrappers))},
                 {"buffer_names", Value::list({text("count")})}});
  }
  /// As of May 2021.
  Value older(std::int64_t r) const {
    ValueList wrappers;
    for (const SceneWrapper& wrapper : scene_.wrappers) {
      ValueList names, shapes, numels, padded;
      for (const SceneBacking& b : backings_) {
        if (b.wrapper != &wrapper) continue;
        describe(b, names, shapes, numels);
        padded.push_back(number(padding(b, r)));
      }
      wrappers.push_back(dict({{"fsdp_path", text(wrapper.path)},
                               {"is_flat", Value::boolean(wrapper.flat)},
                               {"num_padded", Value::list(padded)},
                               {"param_names", Value::list(names)},
                               {"param_shapes", Value::list(shapes)},
                               {"param_numels", Value::list(numels)},
                               {"no_broadcast_optim_state", Value::boolean(false)}}));
    }
    return dict({{"param_metadata", Value::list(std::move(wrappers))},
                 {"buffer_names", Value::list({text("count")})}});
  }
  Value optimizer(RankArchive& archive, std::int64_t r) const {
    ValueDict state;
    ValueList ids;
    for (std::size_t k = 0; k < backings_.size(); ++k) {
      ids.push_back(number(static_cast<std::int64_t>(k)));
      if (!backings_[k].wrapper->used) continue;
      std::vector<std::pair<std::string, Value>> leaves = {
          {"step", archive.tensor({}, {scene_.step(r)})}};
      for (const std::string& leaf : scene_.leaves)
        leaves.emplace_back(leaf, shard(archive, backings_[k], leaf, r));
      state.emplace_back(number(static_cast<std::int64_t>(k)), dict(leaves));
    }
    return dict({{"state", Value::dict(std::move(state))},
                 {"param_groups", Value::list({dict({{"lr", Value::real(0.5)},
                                                     {"params", Value::list(std::move(ids))}})})}});
  }

  const Scene& scene_;
  std::vector<SceneBacking> backings_;
};

/// The scene's files in memory.
struct SceneCheckpoint {
  MemoryFileSystem fs;
  std::unique_ptr<Directory> directory;

  explicit SceneCheckpoint(const Scene& scene, const std::set<std::int64_t>& without = {}) {
    fs.make_directories("/c");
    const SceneFiles files(scene);
    for (std::int64_t r = 0; r < scene.world_size; ++r) {
      std::string name = scene.file;
      name.replace(name.find("{}"), 2, std::to_string(r));
      if (!without.contains(r)) fs.write_file("/c/" + name, files.rank(r));
    }
    directory = fs.open_directory("/c");
  }
  Place place() const { return {directory.get(), "", "scene"}; }
};

/// A wrapper beside the root's whose parameter each of the three ranks has for itself: rank r > 0
/// holds {r, 8}.
inline Scene scene_of_experts() {
  Scene scene{.wrappers = {{.path = "", .parameters = {{"w", {5}}}},
                           {.path = "expert", .parameters = {{"e", {2}}}, .no_broadcast = true}},
              .world_size = 3};
  scene.edit = [](std::int64_t rank, ValueDict& root, RankArchive& archive) {
    ValueDict weights = root[0].second.as_dict();
    if (rank > 0) weights[1].second = archive.tensor({2}, {static_cast<float>(rank), 8});
    root[0].second = Value::ordered_dict(std::move(weights), Value());
  };
  return scene;
}

inline std::vector<float> floats_of(const Manifest& manifest, const Directory& directory,
                                    const std::string& name) {
  const StoredTensor* tensor = manifest.find(name);
  if (!tensor) throw std::runtime_error("no tensor " + name);
  std::vector<float> out(static_cast<std::size_t>(tensor->spec.shape.numel()));
  const TensorReader reader(manifest, directory, {});
  if (!out.empty())
    reader.read(static_cast<std::uint32_t>(tensor - manifest.tensors.data()), 0,
                tensor->spec.shape.numel(), std::as_writable_bytes(std::span(out)));
  return out;
}

/// What differs between the manifest and what the scene put in; "" = nothing. State is held against
/// the scene's where `optimizer`.
inline std::string scene_difference(const Scene& scene, const Manifest& manifest,
                                    const Directory& directory, bool optimizer = true) {
  std::size_t tensors = 1;  // count
  const auto check = [&](const std::string& name, const std::string& fqn, const std::string& leaf,
                         const Shape& shape) -> std::string {
    const StoredTensor* tensor = manifest.find(name);
    if (!tensor) return name + " is missing";
    if (tensor->spec.shape != shape) return name + " has shape " + tensor->spec.shape.to_string();
    const std::vector<float> got = floats_of(manifest, directory, name);
    for (std::size_t i = 0; i < got.size(); ++i)
      if (got[i] != scene_value(fqn, leaf, static_cast<std::int64_t>(i)))
        return fmt::format("{}[{}] is {}", name, i, got[i]);
    ++tensors;
    return "";
  };
  for (const SceneWrapper& wrapper : scene.wrappers) {
    for (const SceneParameter& p : wrapper.parameters) {
      const std::string fqn = scene.fqn(wrapper, p.name);
      if (auto bad = check("model." + fqn, fqn, "", p.shape); !bad.empty()) return bad;
      if (!optimizer || !wrapper.used || !wrapper.flat) continue;
      for (const std::string& leaf : scene.leaves)
        if (auto bad = check("optim.state." + fqn + "." + leaf, fqn, leaf, p.shape); !bad.empty())
          return bad;
      const StateEntry* step = manifest.state.find("optim.state." + fqn + ".step");
      if (!step || step->value != Value::real(5.0)) return "step of " + fqn;
    }
    for (const auto& [from, to] : wrapper.shared) {
      const StoredTensor* source = manifest.find("model." + scene.fqn(wrapper, from));
      if (!source) return "shared source " + from;
      if (auto bad = check("model." + scene.fqn(wrapper, to), scene.fqn(wrapper, from), "",
                           source->spec.shape);
          !bad.empty())
        return bad;
    }
  }
  std::size_t leaves = 0;
  for (const StoredTensor& tensor : manifest.tensors) leaves += !tensor.embedded;
  return leaves == tensors ? "" : fmt::format("{} tensors, not {}", leaves, tensors);
}

}  // namespace tessera::testing

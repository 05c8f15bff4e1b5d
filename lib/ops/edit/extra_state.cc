#include "lib/ops/edit/extra_state.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/state/roles.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/format/megatron_torch/model_names.h"
#include "lib/format/megatron_torch/rank_grid.h"
#include "lib/format/megatron_torch/tp_rule.h"
#include "lib/ops/edit/megatron_places.h"
#include "lib/state/edit/move_entry.h"
#include "lib/state/edit/take_out.h"
#include "lib/state/sharded_object.h"

namespace tessera {
namespace {

constexpr std::string_view kEnding = "_extra_state", kModel = "model",
                           kStacked = ".experts.experts.", kLocal = ".experts.local_experts.",
                           kGrouped = ".experts.";
constexpr std::string_view kHeads =
    "output_layer.";  // asserted to be empty, and not saved, by Megatron

/// Megatron's word for nothing: None, or a tensor without elements.
bool says_nothing(const Manifest& manifest, const Value& value) {
  if (value.is_none()) return true;
  return value.is_tensor() && manifest.tensors[value.tensor_index()].spec.shape.numel() == 0;
}

[[noreturn]] void refuse(std::string_view name, std::string_view why) {
  fail(Code::kUnsupported, fmt::format("\"{}\" {}", printable(name), why),
       "--exclude '*_extra_state*' leaves such state out: modules make it anew");
}

/// Weights by FQN, and what their names show.
class Weights {
 public:
  explicit Weights(const Manifest& manifest) {
    const Roles roles = find_roles(manifest.state);
    for (std::size_t i = 0; i < roles.entries.size(); ++i) {
      const Value& value = manifest.state.entries[i].value;
      if (roles.entries[i].role == Role::kModel && value.is_tensor())
        shapes_.emplace(roles.entries[i].fqn, manifest.tensors[value.tensor_index()].spec.shape);
    }
  }

  bool any(std::string_view part) const {
    return std::ranges::any_of(shapes_,
                               [&](const auto& w) { return w.first.find(part) != w.first.npos; });
  }
  /// How many layers are stacked under "decoder.layers."; nullopt: they are apart.
  std::optional<std::int64_t> stacked(std::string_view layers) const {
    for (const auto& [fqn, shape] : shapes_)
      if (fqn.starts_with(layers) && megatron_torch::is_layer_stack(fqn) && shape.rank() > 0)
        return shape[0];
    return std::nullopt;
  }
  const std::map<std::string, Shape>& shapes() const { return shapes_; }

 private:
  std::map<std::string, Shape> shapes_;
};

/// torch_dist keeps a list of the one object; tensors that are entries are no longer embedded in one.
const Value& object_in(const StateEntry& entry) {
  const bool listed = entry.value.kind() == Value::Kind::kList && entry.value.as_list().size() == 1;
  return listed ? entry.value.as_list()[0] : entry.value;
}
void unwrap(Manifest& manifest, StateEntry& entry) {
  Value held = object_in(entry);
  entry.value = std::move(held);
  for_each_tensor(entry.value, [&](std::uint32_t t) {
    manifest.tensors[t].embedded = !entry.value.is_tensor();
  });
}
void wrap(Manifest& manifest, StateEntry& entry) {
  entry.value = Value::list({std::move(entry.value)});
  for_each_tensor(entry.value, [&](std::uint32_t t) { manifest.tensors[t].embedded = true; });
}

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  const std::size_t at = text.find(from);
  return at == text.npos ? text : text.replace(at, from.size(), to);
}

/// The name in rank files of an object of one place.
class ModuleOf {
 public:
  explicit ModuleOf(const Manifest& manifest) : manifest_(manifest), weights_(manifest) {}

  /// nullopt: one of a group of experts that says nothing, which another of them says, too.
  std::optional<std::string> operator()(const StateEntry& entry,
                                        const ShardedObject& object) const {
    std::string name(object.key);
    std::vector<std::int64_t> place = object.place;
    const auto take_first = [&] {
      if (place.empty())
        refuse(entry.name, "has no place among the layers and experts of its name");
      const std::int64_t number = place.front();
      place.erase(place.begin());
      return number;
    };
    if (const auto at = megatron_torch::layer_place(name))
      name.insert(*at, fmt::format("{}.", take_first()));
    if (name.find(kStacked) != name.npos) {
      const std::int64_t expert = take_first();
      if (weights_.any(kLocal)) {
        name = replaced(name, kStacked, fmt::format("{}{}.", kLocal, expert));
      } else {
        if (!says_nothing(manifest_, object_in(entry)))
          refuse(
              entry.name,
              "is that of one expert, and grouped experts have one for all of them in rank files");
        if (expert != 0) return std::nullopt;
        name = replaced(name, kStacked, kGrouped);
      }
    }
    if (std::ranges::any_of(place, [](std::int64_t p) { return p != 0; }))
      refuse(entry.name, "is of a place that its name does not explain");
    return name;
  }

 private:
  const Manifest& manifest_;
  const Weights weights_;
};

}  // namespace

void extra_state_to_modules(Manifest& manifest, std::optional<std::int64_t> core) {
  std::vector<StateEntry>& entries = manifest.state.entries;
  const auto object_of = [](const StateEntry& entry) {
    auto object = parse_sharded_object(entry.name);
    return object && object->key.ends_with(kEnding) ? object : std::nullopt;
  };
  if (std::ranges::none_of(entries,
                           [&](const StateEntry& entry) { return object_of(entry).has_value(); }))
    return;
  const ModuleOf module_of(manifest);
  const Roles roles = find_roles(manifest.state);
  if (roles.model_roots.size() > 1) return;  // refused with the weights
  std::vector<bool> gone(entries.size(), false);
  std::vector<std::pair<std::size_t, Path>> moves;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (const auto object = object_of(entries[i])) {
      const auto name = module_of(entries[i], *object);
      gone[i] = !name;
      if (name)
        moves.emplace_back(
            i, Path{key_item(std::string(kModel)),
                    key_item(further_layer_name(manifest, *name, /*of_rank_files=*/true, core))});
    } else if (roles.entries[i].role == Role::kModel) {
      moves.emplace_back(
          i, Path{key_item(std::string(kModel)), key_item(std::string(roles.entries[i].fqn))});
    }
  }
  for (auto& [entry, path] : moves) {
    StateEntry& moved = entries[entry];
    if (object_of(moved)) unwrap(manifest, moved);
    move_entry(manifest, moved, std::move(path));
  }
  take_out(manifest.state, gone);
}

namespace {

/// The name in torch_dist of a module's own state.
class ObjectOf {
 public:
  ObjectOf(const Manifest& manifest, const std::vector<std::string>& modules)
      : manifest_(manifest), weights_(manifest) {
    for (const std::string& name : modules)
      if (const auto expert = megatron_torch::expert_name(name)) {
        std::int64_t& count = experts_[expert->before + "*" + expert->after];
        count = std::max(count, expert->expert + 1);
      }
  }

  /// Several for experts in a group; none for a head's, which Megatron does not save.
  std::vector<std::string> operator()(std::string name, const Value& value) const {
    const std::string full = name;
    if (name.starts_with(kHeads) || name.find("." + std::string(kHeads)) != name.npos) {
      if (!says_nothing(manifest_, value)) refuse(full, "is not saved in torch_dist");
      return {};
    }
    std::vector<std::int64_t> place, grid;
    if (const auto layer = megatron_torch::layer_name(name))
      if (const auto count = weights_.stacked(layer->before)) {
        place.push_back(layer->layer);
        grid.push_back(*count);
        name = layer->before + layer->after.substr(1);
      }
    if (const auto expert = megatron_torch::expert_name(name)) {
      // The count is by the name with its layer.
      const auto of_full = *megatron_torch::expert_name(full);
      place.push_back(expert->expert);
      grid.push_back(experts_.at(of_full.before + "*" + of_full.after));
      const std::string head = expert->before.substr(0, expert->before.rfind("local_experts."));
      return {named(head + "experts." + expert->after.substr(1), place, grid)};
    }
    if (name.find(".experts.linear_fc") != name.npos)
      return grouped(full, name, value, place, grid);
    if (place.empty()) {
      place.push_back(0);
      grid.push_back(1);
    }
    return {named(name, place, grid)};
  }

 private:
  static std::string named(const std::string& key, const std::vector<std::int64_t>& place,
                           const std::vector<std::int64_t>& grid) {
    return fmt::format("{}/shard_{}_{}", key, fmt::join(place, "."), fmt::join(grid, "."));
  }

  std::vector<std::string> grouped(const std::string& full, std::string name, const Value& value,
                                   std::vector<std::int64_t> place,
                                   std::vector<std::int64_t> grid) const {
    if (!says_nothing(manifest_, value))
      refuse(full, "is that of grouped experts together, and torch_dist has one for each of them");
    name = replaced(name, kGrouped, kStacked);
    const std::string weight = name.substr(0, name.size() - kEnding.size()) + "weight";
    const auto found = weights_.shapes().find(weight);
    const std::size_t dim = place.size();
    if (found == weights_.shapes().end() || found->second.rank() <= static_cast<int>(dim))
      return {};
    const std::int64_t experts = found->second[static_cast<int>(dim)];
    std::vector<std::string> names;
    place.push_back(0);
    grid.push_back(experts);
    for (; place.back() < experts; ++place.back()) names.push_back(named(name, place, grid));
    return names;
  }

  const Manifest& manifest_;
  const Weights weights_;
  std::map<std::string, std::int64_t> experts_;
};

/// The name in the model of a module's own state; "" for all else.
std::string module_state(const StateEntry& entry) {
  if (entry.path.size() < 2 || !is_key(entry.path[0], kModel)) return "";
  std::string name = dotted(Path(entry.path.begin() + 1, entry.path.end()));
  return name.ends_with(kEnding) ? name : "";
}

}  // namespace

void extra_state_to_objects(Manifest& manifest) {
  std::vector<StateEntry>& entries = manifest.state.entries;
  std::vector<std::string> modules;
  for (const StateEntry& entry : entries) {
    if (!entry.path.empty() && is_key(entry.path[0], megatron_torch::kRankExtraState))
      refuse(entry.name, "is one rank's own, and torch_dist has one for all tensor-parallel ranks");
    if (std::string name = module_state(entry); !name.empty()) modules.push_back(std::move(name));
  }
  if (modules.empty()) return;
  const ObjectOf object_of(manifest, modules);
  std::vector<bool> gone(entries.size(), false);
  std::vector<StateEntry> more;
  for (std::size_t i = 0; i < gone.size(); ++i) {
    const std::string name = module_state(entries[i]);
    if (name.empty()) continue;
    const std::vector<std::string> names =
        object_of(further_layer_name(manifest, name, /*of_rank_files=*/false), entries[i].value);
    gone[i] = names.empty();
    for (std::size_t n = 1; n < names.size(); ++n) {
      StateEntry& copy = more.emplace_back();
      copy.name = names[n];
      copy.path = {key_item(copy.name)};
      copy.value = Value::list({Value()});  // what no elements say, too: see grouped()
    }
    if (names.empty()) continue;
    move_entry(manifest, entries[i], {key_item(names[0])});
    wrap(manifest, entries[i]);
  }
  take_out(manifest.state, gone);
  for (StateEntry& entry : more) manifest.state.entries.push_back(std::move(entry));
}

}  // namespace tessera

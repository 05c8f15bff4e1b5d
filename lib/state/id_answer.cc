#include "lib/state/id_answer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <tessera/base/text.h>

#include <algorithm>
#include <map>
#include <set>

#include "lib/state/model_names.h"
#include "lib/state/parameter_order.h"
#include "lib/state/parameter_shape.h"
#include "lib/state/tensor_bytes.h"
#include "lib/state/tensor_wrapper.h"

namespace tessera {
namespace {

/// Tensor or wrapper: what shape the leaf has to its optimizer.
std::optional<Shape> leaf_shape(const Manifest& manifest, const OptimLeaf& leaf) {
  if (leaf.tensor != kNoTensor) return manifest.tensors[leaf.tensor].spec.shape;
  const auto spec = wrapper_spec(manifest.state.entries[leaf.entry].value);
  return spec ? std::optional(spec->shape) : std::nullopt;
}

/// Means of squares by rows and by columns: together they have the parameter's shape.
bool is_factor(std::string_view leaf) {
  return leaf.ends_with("_row") || leaf.ends_with("_col") || leaf == "row_var" || leaf == "col_var";
}

/// A model by itself: a key of the state dict with weights below it.
struct Unit {
  std::string name;
  std::vector<OptimWeight> weights;
};

/// The models of a state dict without a well-known one: "netG" and "netD" of {"netG": {"0.weight":
/// ...}, "netD": ...}. None where a tree of modules stands at the top.
std::vector<Unit> units_of(const Manifest& manifest, const Roles& roles,
                           const std::vector<OptimWeight>& weights) {
  constexpr std::size_t kMostModels = 64;
  if (roles.model_roots.size() == 1 && !roles.model_roots[0].empty()) return {};
  const auto path_of = [&](const OptimWeight& weight) -> const Path& {
    return manifest.state.entries[weight.entry].path;
  };
  const bool state_dicts = std::ranges::any_of(weights, [&](const OptimWeight& weight) {
    const Path& path = path_of(weight);
    return path.size() > 1 && path.back().text().find('.') != std::string::npos;
  });
  if (!state_dicts) return {};
  std::vector<Unit> units;
  for (const OptimWeight& weight : weights) {
    const Path& path = path_of(weight);
    std::string name = path.empty() ? "" : dotted(Path(path.begin(), path.end() - 1));
    auto found = std::ranges::find(units, name, &Unit::name);
    if (found == units.end()) {
      if (units.size() == kMostModels) return {};
      units.push_back({std::move(name), {}});
      found = units.end() - 1;
    }
    found->weights.push_back(weight);
  }
  return units;
}

/// The parts of one model that several optimizers share: "generator" and "discriminator" below
/// "state_dict", or "a" and "b" of {"model": {"a": ..., "b": ...}}.
std::vector<Unit> parts_of(const Roles& roles, const std::vector<OptimWeight>& weights) {
  const bool several = roles.optimizers.size() > 1 && roles.model_roots.size() == 1;
  if (!several) return {};
  std::vector<Unit> parts;
  std::map<std::string_view, std::size_t> known;
  for (const OptimWeight& weight : weights) {
    const std::string_view key = std::string_view(weight.fqn).substr(0, weight.fqn.find('.'));
    const auto [found, is_new] = known.try_emplace(key, parts.size());
    if (is_new) parts.push_back({std::string(key), {}});
    parts[found->second].weights.push_back(weight);
  }
  std::erase_if(parts, [](const Unit& part) { return part.weights.size() < 2; });
  return parts;
}

class Answerer {
 public:
  Answerer(const Manifest& manifest, const IdShapes& ids) : manifest_(manifest), ids_(ids) {}

  /// Parameters among the weights: without buffers, and tied ones once.
  std::vector<std::size_t> candidates(const std::vector<OptimWeight>& weights) const {
    std::vector<std::size_t> places;
    std::set<TensorPlace> seen;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const StoredTensor& tensor = manifest_.tensors[weights[i].tensor];
      const bool number = is_floating(tensor.spec.dtype) || is_complex(tensor.spec.dtype);
      if (tensor.kind == TensorKind::kBuffer || !number) continue;
      const auto place = place_of(manifest_, tensor);
      if (place && !seen.insert(*place).second) continue;
      places.push_back(i);
    }
    return places;
  }

  IdMapping map(const std::vector<OptimWeight>& weights) const {
    const std::vector<std::size_t> places = candidates(weights);
    std::vector<Shape> of_model;
    for (const std::size_t i : places) of_model.push_back(shape_of(weights[i]));
    IdMapping mapping = map_ids(ids_.shapes, ids_.group_sizes, of_model);
    const bool as_many = ids_.shapes.size() == places.size() && ids_.group_sizes.size() == 1;
    if (!mapping.complete && !ids_.sure && as_many) mapping = in_order(of_model);
    for (std::int64_t& at : mapping.candidate)
      if (at >= 0) at = static_cast<std::int64_t>(places[static_cast<std::size_t>(at)]);
    return mapping;
  }

  /// No two optimizers train one parameter: what others were given is taken where nothing else fits.
  IdAnswer among_free(const std::vector<OptimWeight>& weights, const GivenWeights& given) const {
    std::vector<OptimWeight> free;
    for (const OptimWeight& weight : weights)
      if (!given.tensors.contains(weight.tensor)) free.push_back(weight);
    if (free.size() < weights.size()) {
      IdAnswer answer{free, map(free), ""};
      answer.mapping.certain = answer.mapping.certain && given.certain;
      if (answer.mapping.complete) return answer;
    }
    return {weights, map(weights), ""};
  }

  /// Without an order: an id has the name of the one weight of its shape, where it is the one id of
  /// that shape.
  IdAnswer by_shape_alone(const std::vector<OptimWeight>& weights) const {
    std::map<std::string, std::vector<std::int64_t>> of_shape;
    for (const std::size_t i : candidates(weights))
      of_shape[shape_of(weights[i]).to_string()].push_back(static_cast<std::int64_t>(i));
    std::map<std::string, std::size_t> ids;
    for (const auto& shape : ids_.shapes)
      if (shape) ++ids[shape->to_string()];
    IdAnswer answer{weights, {}, ""};
    std::size_t undecided = 0;
    for (const auto& shape : ids_.shapes) {
      const auto found = shape ? of_shape.find(shape->to_string()) : of_shape.end();
      const bool fits = found != of_shape.end();
      const bool one = fits && found->second.size() == 1 && ids.at(found->first) == 1;
      answer.mapping.candidate.push_back(one ? found->second[0] : -1);
      answer.undecided.push_back(fits ? !one : !shape);
      undecided += answer.undecided.back();
    }
    answer.mapping.complete = answer.mapping.certain =
        std::ranges::find(answer.mapping.candidate, -1) == answer.mapping.candidate.end();
    if (undecided > 0)
      answer.note = fmt::format(
          "{} of {} integer ids stay without names: several parameters have their shapes, and the "
          "weights are stored in the order of their names, which is not the model's",
          undecided, ids_.shapes.size());
    return answer;
  }

  bool fits_alone(const Unit& unit) const {
    return candidates(unit.weights).size() == ids_.shapes.size() && map(unit.weights).complete;
  }

  /// Whether the ids, met with all weights, are no other ones than `of_part` says.
  bool is_only_answer(const std::vector<OptimWeight>& weights, const IdAnswer& of_part) const {
    const IdMapping all = map(weights);
    for (std::size_t i = 0; all.complete && i < all.candidate.size(); ++i)
      if (weights[static_cast<std::size_t>(all.candidate[i])].tensor !=
          of_part.weights[static_cast<std::size_t>(of_part.mapping.candidate[i])].tensor)
        return false;
    return true;
  }

 private:
  const Shape& shape_of(const OptimWeight& weight) const {
    return manifest_.tensors[weight.tensor].spec.shape;
  }

  /// One group with as many ids as there are parameters: they are these, in order, if what is kept
  /// for them is of other shapes (which an unknown optimizer may keep) and not in another order.
  IdMapping in_order(const std::vector<Shape>& of_model) const {
    std::vector<std::optional<Shape>> known = ids_.shapes;
    for (std::size_t i = 0; i < known.size(); ++i) {
      const bool elsewhere = known[i] && std::ranges::find(of_model, *known[i]) != of_model.end();
      if (known[i] != of_model[i] && !elsewhere) known[i].reset();
    }
    return map_ids(known, ids_.group_sizes, of_model);
  }

  const Manifest& manifest_;
  const IdShapes& ids_;
};

/// An optimizer of one parameter may be called by it: "optimizer.layers.0.weight" of training code
/// that steps in backward, with an optimizer for each.
std::optional<IdAnswer> by_own_name(const Roles& roles, std::int32_t root,
                                    const std::vector<OptimWeight>& weights, const IdShapes& ids,
                                    const Manifest& manifest) {
  if (ids.shapes.size() != 1) return std::nullopt;
  const std::string_view name = roles.optimizers[static_cast<std::size_t>(root)].name;
  std::optional<std::size_t> longest;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const std::string& fqn = weights[i].fqn;
    const bool ends = name.ends_with(fqn) &&
                      (name.size() == fqn.size() || name[name.size() - fqn.size() - 1] == '.');
    const bool fits =
        !ids.shapes[0] || *ids.shapes[0] == manifest.tensors[weights[i].tensor].spec.shape;
    if (ends && fits && (!longest || fqn.size() > weights[*longest].fqn.size())) longest = i;
  }
  if (!longest) return std::nullopt;
  return IdAnswer{weights, {{static_cast<std::int64_t>(*longest)}, true, true}, ""};
}

/// Tensors that stand by themselves where the optimizer does, and have the shape of its one id: SAC's
/// `log_alpha`.
std::vector<OptimWeight> tensors_beside(const Manifest& manifest, const Roles& roles,
                                        std::int32_t root, const std::optional<Shape>& shape) {
  const std::string& optimizer = roles.optimizers[static_cast<std::size_t>(root)].name;
  const std::string folder = optimizer.substr(0, optimizer.rfind('.') + 1);
  std::vector<OptimWeight> found;
  for (std::size_t i = 0; i < roles.entries.size(); ++i) {
    const StateEntry& entry = manifest.state.entries[i];
    if (!entry.value.is_tensor() || roles.entries[i].root >= 0) continue;
    const std::string_view name = entry.name;
    const bool at_top = entry.path.size() <= 1 && name.find('.') == name.npos;
    const bool beside = entry.path.size() == 2 && !folder.empty() && name.starts_with(folder) &&
                        name.find('.', folder.size()) == name.npos;
    if (!at_top && !beside) continue;
    const std::uint32_t tensor = entry.value.tensor_index();
    const TensorSpec& spec = manifest.tensors[tensor].spec;
    if (!is_floating(spec.dtype) || (shape ? spec.shape != *shape : spec.shape.numel() != 1))
      continue;
    const bool is_weight = roles.entries[i].role == Role::kModel;
    found.push_back({is_weight ? std::string(roles.entries[i].fqn) : std::string(name), i, tensor});
  }
  return found;
}

/// An optimizer of one parameter that is called by a tensor beside it.
std::optional<IdAnswer> by_tensor_name(const Roles& roles, std::int32_t root,
                                       const std::vector<OptimWeight>& tensors) {
  const std::string& name = roles.optimizers[static_cast<std::size_t>(root)].name;
  const auto is_its = [&](const OptimWeight& tensor) { return trains_tensor(name, tensor.fqn); };
  if (std::ranges::count_if(tensors, is_its) != 1) return std::nullopt;
  return IdAnswer{{*std::ranges::find_if(tensors, is_its)}, {{0}, true, true}, ""};
}

/// The unit that is the optimizer's among those that its ids fit, and whether another could be:
/// the one beside it or of its name, else the first that no other optimizer has.
std::pair<const Unit*, bool> choose(const Roles& roles, std::int32_t root,
                                    std::vector<const Unit*> fitting, const GivenWeights& given) {
  const auto at = static_cast<std::size_t>(root);
  keep_nearest(roles.optimizers[at].name, fitting,
               [](const Unit* unit) -> const std::string& { return unit->name; });
  const auto agrees = [&](std::size_t optimizer, const Unit* unit) {
    return names_agree(roles.optimizers[optimizer].name, unit->name);
  };
  const auto ours = [&](const Unit* unit) { return agrees(at, unit); };
  if (std::ranges::count_if(fitting, ours) == 1)
    return {*std::ranges::find_if(fitting, ours), true};
  const auto is_free = [&](const Unit* unit) {
    for (std::size_t other = 0; other < roles.optimizers.size(); ++other)
      if (other != at && agrees(other, unit)) return false;
    return std::ranges::none_of(unit->weights, [&](const OptimWeight& weight) {
      return given.tensors.contains(weight.tensor);
    });
  };
  const auto free = std::ranges::find_if(fitting, is_free);
  return {free == fitting.end() ? fitting[0] : *free, fitting.size() == 1};
}

/// An optimizer of several models that are called like it: "q_optimizer" of "qf1" and "qf2".
std::optional<IdAnswer> by_common_name(const Answerer& answerer, const std::string& optimizer,
                                       const std::vector<Unit>& units) {
  Unit joined;
  std::size_t models = 0;
  for (const Unit& unit : units) {
    if (!names_agree(optimizer, unit.name) || is_copy_name(unit.name)) continue;
    joined.weights.insert(joined.weights.end(), unit.weights.begin(), unit.weights.end());
    ++models;
  }
  if (models < 2 || !answerer.fits_alone(joined)) return std::nullopt;
  IdMapping mapping = answerer.map(joined.weights);
  return IdAnswer{std::move(joined.weights), std::move(mapping), ""};
}

/// By order and shape: which model, and which of its weights.
IdAnswer among_models(const Manifest& manifest, const Roles& roles, std::int32_t root,
                      const std::vector<OptimWeight>& weights, const IdShapes& ids,
                      const GivenWeights& given) {
  const Answerer answerer(manifest, ids);
  if (!in_model_order(manifest)) return answerer.by_shape_alone(weights);
  std::vector<Unit> units = units_of(manifest, roles, weights);
  const bool by_parts = units.empty();
  if (by_parts) units = parts_of(roles, weights);
  std::vector<const Unit*> fitting;
  if (units.size() > 1)
    for (const Unit& unit : units)
      if (answerer.fits_alone(unit)) fitting.push_back(&unit);
  std::erase_if(fitting,
                [&](const Unit* unit) { return fitting.size() > 1 && is_copy_name(unit->name); });
  if (fitting.empty()) {
    const std::string& optimizer = roles.optimizers[static_cast<std::size_t>(root)].name;
    if (auto named = by_common_name(answerer, optimizer, units)) return *std::move(named);
    return answerer.among_free(weights, given);
  }
  const auto [chosen, certain] = choose(roles, root, fitting, given);
  IdAnswer answer{chosen->weights, answerer.map(chosen->weights), ""};
  // An optimizer of a part may be one of parameters here and there.
  answer.mapping.certain =
      answer.mapping.certain && (!by_parts || answerer.is_only_answer(weights, answer));
  if (certain) return answer;
  std::vector<std::string> names;
  for (const Unit* unit : fitting) names.push_back(printable(unit->name));
  answer.mapping.certain = false;
  answer.note = fmt::format("its ids fit several models ({}): taken to be those of \"{}\"",
                            fmt::join(names, ", "), printable(chosen->name));
  return answer;
}

}  // namespace

std::optional<Shape> shape_by_state(const Manifest& manifest, const OptimState& optim,
                                    const OptimParameter& parameter) {
  std::vector<std::pair<std::string_view, Shape>> leaves;
  for (const OptimLeaf& leaf : parameter.leaves) {
    const LeafCut cut = optim.cut_of(parameter, leaf.name);
    const bool alike = cut == LeafCut::kElementwise || cut == LeafCut::kBlocks;
    const bool projected = parameter.find("projector") != nullptr;  // rows of what was projected
    if (!alike && (projected || !is_factor(leaf.name))) continue;
    if (const auto shape = leaf_shape(manifest, leaf)) leaves.emplace_back(leaf.name, *shape);
  }
  return parameter_shape(leaves);
}

IdAnswer find_parameters(const Manifest& manifest, const Roles& roles, std::int32_t root,
                         const std::vector<OptimWeight>& weights, const IdShapes& ids,
                         const GivenWeights& given) {
  if (auto named = by_own_name(roles, root, weights, ids, manifest)) return *std::move(named);
  if (ids.shapes.size() != 1) return among_models(manifest, roles, root, weights, ids, given);
  const auto beside = tensors_beside(manifest, roles, root, ids.shapes[0]);
  if (auto named = by_tensor_name(roles, root, beside)) return *std::move(named);
  IdAnswer answer = among_models(manifest, roles, root, weights, ids, given);
  // One of no model could be meant as well.
  const auto is_considered = [&](const OptimWeight& tensor) {
    return std::ranges::find(weights, tensor.tensor, &OptimWeight::tensor) != weights.end();
  };
  answer.mapping.certain = answer.mapping.certain && std::ranges::all_of(beside, is_considered);
  return answer;
}

}  // namespace tessera

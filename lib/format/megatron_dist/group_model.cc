#include "lib/format/megatron_dist/group_model.h"

#include <fmt/format.h>
#include <tessera/base/checked.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "lib/format/megatron_dist/module_order.h"
#include "lib/format/megatron_torch/model_names.h"
#include "lib/format/megatron_torch/tp_rule.h"

namespace tessera::megatron_dist {
namespace {

constexpr std::size_t kMostCells = std::size_t{1} << 22;
constexpr std::string_view kIndexMap = "(the model's param_index_map)";

/// A weight, or one layer of a stack of them: what ranks register as one parameter.
struct Cell {
  std::uint32_t tensor = 0;
  std::int64_t layer = -1;
  std::int64_t numel = 0;
  std::map<std::size_t, std::vector<Box>> parts;  // by group
  std::set<std::string> writers;
};

class ModelFinder {
 public:
  ModelFinder(const Manifest& manifest, const std::map<std::string, std::size_t>& groups,
              std::size_t count)
      : manifest_(manifest), groups_(groups), count_(count) {}

  std::string run(std::vector<GroupModel>& models) {
    if (std::string why = find_cells(); !why.empty()) return why;
    if (std::string why = find_stages(); !why.empty()) return why;
    models.resize(count_);
    for (std::size_t stage = 0; stage * width_ < count_; ++stage)
      stored_order_is_theirs_ = stored_order_is_theirs_ && writers_of_first_group(stage).size() < 2;
    for (std::size_t stage = 0; stage * width_ < count_; ++stage)
      if (std::string why = add_stage(stage, models); !why.empty()) return why;
    return {};
  }

 private:
  std::string find_cells() {
    for (std::uint32_t t = 0; t < manifest_.tensors.size(); ++t) {
      const StoredTensor& tensor = manifest_.tensors[t];
      if (tensor.embedded || is_optimizer_entry(tensor.name) || !is_floating(tensor.spec.dtype) ||
          tensor.name.ends_with("_extra_state"))
        continue;
      if (megatron_torch::is_expert(tensor.name))
        return fmt::format(
            "the model has experts (\"{}\"), whose order in the buckets is not stored {}",
            tensor.name, kIndexMap);
      if (std::string why = add_cells(t); !why.empty()) return why;
    }
    return {};
  }

  std::string add_cells(std::uint32_t t) {
    const StoredTensor& tensor = manifest_.tensors[t];
    const Shape& shape = tensor.spec.shape;
    const bool stack = megatron_torch::is_layer_stack(tensor.name) && shape.rank() > 0;
    const std::int64_t layers = stack ? shape[0] : 1;
    if (layers > static_cast<std::int64_t>(kMostCells - std::min(kMostCells, cells_.size())))
      return fmt::format("\"{}\" has {} layers", tensor.name, layers);
    const std::size_t first = cells_.size();
    for (std::int64_t layer = 0; layer < layers; ++layer)
      cells_.push_back(
          {t, stack ? layer : -1, stack ? shape.inner_numel(0) : shape.numel(), {}, {}});
    for (std::size_t c = 0; c < tensor.chunk_count; ++c) {
      const Box box = manifest_.chunk(tensor, c).box;
      if (stack && box.shape[0] != 1)
        return fmt::format("a chunk of \"{}\" spans several layers", tensor.name);
      const std::string writer = writer_of(manifest_.files[manifest_.source(tensor, c).file].path);
      const auto group = groups_.find(writer);
      if (group == groups_.end() && count_ > 1)
        return fmt::format(
            "{} wrote weights but no buckets: its model-parallel group is not stored", writer);
      Cell& cell = cells_[first + (stack ? static_cast<std::size_t>(box.origin[0]) : 0)];
      cell.parts[group == groups_.end() ? 0 : group->second].push_back(box);
      cell.writers.insert(writer);
    }
    return {};
  }

  /// Groups of a stage follow each other, as many in each.
  std::string find_stages() {
    std::vector<std::size_t> root(count_);
    std::iota(root.begin(), root.end(), std::size_t{0});
    const auto find = [&](std::size_t g) {
      while (root[g] != g) g = root[g] = root[root[g]];
      return g;
    };
    for (const Cell& cell : cells_)
      for (const auto& [group, boxes] : cell.parts) {
        const std::size_t a = find(group), b = find(cell.parts.begin()->first);
        root[std::max(a, b)] = std::min(a, b);
      }
    width_ = 1;
    while (width_ < count_ && find(width_) == 0) ++width_;
    bool grid = count_ % width_ == 0;
    for (std::size_t g = 0; g < count_; ++g) grid = grid && find(g) == g / width_ * width_;
    if (grid) return {};
    return fmt::format(
        "their {} model-parallel groups hold weights in a way that is no grid of "
        "stages and tensor-parallel ranks",
        count_);
  }

  bool is_of(const Cell& cell, std::size_t stage) const {
    return !cell.parts.empty() && cell.parts.begin()->first / width_ == stage;
  }

  /// Ranks that wrote what the stage's first group holds. Several are a fully parallel save, where
  /// .metadata lists a stack of layers by what the first rank wrote of another stage's.
  std::set<std::string> writers_of_first_group(std::size_t stage) const {
    std::set<std::string> writers;
    for (const Cell& cell : cells_) {
      if (!is_of(cell, stage)) continue;
      for (const std::string& writer : cell.writers) {
        const auto group = groups_.find(writer);
        if (group == groups_.end() || group->second == stage * width_) writers.insert(writer);
      }
    }
    return writers;
  }

  std::string add_stage(std::size_t stage, std::vector<GroupModel>& models) const {
    const std::size_t begin = stage * width_, end = begin + width_;
    std::vector<const Cell*> held;
    for (const Cell& cell : cells_) {
      if (!is_of(cell, stage)) continue;
      if (cell.parts.rbegin()->first >= end)
        return fmt::format("\"{}\" is held by several stages", name_of(cell));
      held.push_back(&cell);
    }
    std::vector<std::vector<const Cell*>> orders;
    if (stored_order_is_theirs_) {
      orders.push_back(stored_order(held));
    } else if (std::string why = module_orders(held, orders); !why.empty()) {
      return why;
    }
    const Cell* copy = stage > 0 && end == count_ ? tied_copy() : nullptr;
    for (std::size_t group = begin; group < end; ++group) {
      for (std::vector<const Cell*> order : orders) {
        for (int with_copy = copy ? 1 : 0; with_copy >= 0; --with_copy) {
          std::vector<RankParameter> parameters;
          for (const Cell* cell : order)
            if (std::string why = add(*cell, group, begin, parameters); !why.empty()) return why;
          if (with_copy) {
            if (std::string why = add(*copy, group - begin, 0, parameters); !why.empty())
              return why;
            parameters.back().counts = false;
          }
          models[group].orders.push_back(std::move(parameters));
        }
      }
    }
    return {};
  }

  /// The last stage's cell if the output layer's weight is the embedding's, which only the first
  /// stage stores.
  const Cell* tied_copy() const {
    const Cell* found = nullptr;
    for (const Cell& cell : cells_) {
      if (name_of(cell).ends_with("output_layer.weight")) return nullptr;
      if (name_of(cell).ends_with(megatron_torch::kEmbedding)) found = &cell;
    }
    return found;
  }

  std::string add(const Cell& cell, std::size_t group, std::size_t first,
                  std::vector<RankParameter>& out) const {
    RankParameter made;
    made.tensor = cell.tensor;
    std::int64_t all = 0;
    for (const auto& [owner, boxes] : cell.parts)
      for (const Box& box : boxes) all += box.numel();
    const bool whole = cell.parts.size() == 1;
    const auto mine = whole ? cell.parts.begin() : cell.parts.find(group);
    if (all != cell.numel || mine == cell.parts.end() || (!whole && cell.parts.size() != width_))
      return fmt::format("tensor-parallel ranks hold \"{}\" in parts that are not theirs alone",
                         name_of(cell));
    made.boxes = mine->second;
    std::ranges::sort(made.boxes, {}, &Box::origin);
    for (const Box& box : made.boxes) made.numel += box.numel();
    made.counts = !whole || group == first;
    out.push_back(std::move(made));
    return {};
  }

  const SharedText& name_of(const Cell& cell) const { return manifest_.tensors[cell.tensor].name; }

  /// As .metadata lists them, layer by layer.
  std::vector<const Cell*> stored_order(const std::vector<const Cell*>& held) const {
    std::vector<const Cell*> out;
    for (std::size_t i = 0; i < held.size();) {
      std::size_t end = i + 1;
      while (end < held.size() && held[i]->layer >= 0 && held[end]->layer >= 0 &&
             prefix_of(*held[end]) == prefix_of(*held[i]))
        ++end;
      const auto at = out.insert(out.end(), held.begin() + static_cast<std::ptrdiff_t>(i),
                                 held.begin() + static_cast<std::ptrdiff_t>(end));
      std::stable_sort(at, out.end(),
                       [](const Cell* a, const Cell* b) { return a->layer < b->layer; });
      i = end;
    }
    return out;
  }
  std::string prefix_of(const Cell& cell) const {
    const std::string& name = name_of(cell);
    return name.substr(0, name.find("layers."));
  }

  std::string module_orders(const std::vector<const Cell*>& held,
                            std::vector<std::vector<const Cell*>>& orders) const {
    for (const ModuleOrder kind : {ModuleOrder::kFused, ModuleOrder::kSeparate}) {
      std::vector<std::pair<ModulePlace, const Cell*>> placed;
      for (const Cell* cell : held) {
        auto place = module_place(name_of(*cell), cell->layer, kind);
        if (!place)
          return fmt::format(
              "several ranks of a group wrote its weights (a fully parallel save), and where "
              "Megatron registers \"{}\" is not known here {}",
              name_of(*cell), kIndexMap);
        placed.emplace_back(*place, cell);
      }
      std::ranges::stable_sort(placed, {}, [](const auto& p) { return p.first; });
      orders.emplace_back();
      for (const auto& [place, cell] : placed) orders.back().push_back(cell);
    }
    return {};
  }

  const Manifest& manifest_;
  const std::map<std::string, std::size_t>& groups_;
  const std::size_t count_;
  std::size_t width_ = 1;               // tensor-parallel ranks
  bool stored_order_is_theirs_ = true;  // of .metadata, and of the model's parameters
  std::vector<Cell> cells_;
};

}  // namespace

std::string writer_of(const std::string& path) { return path.substr(0, path.find_last_of('_')); }

bool is_optimizer_entry(std::string_view name) {
  return name.starts_with("optimizer.") || name.starts_with("chained_");
}

std::string find_group_models(const Manifest& manifest,
                              const std::map<std::string, std::size_t>& groups, std::size_t count,
                              std::vector<GroupModel>& models) {
  return ModelFinder(manifest, groups, count).run(models);
}

}  // namespace tessera::megatron_dist

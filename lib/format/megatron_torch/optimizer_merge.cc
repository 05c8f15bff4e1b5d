#include "lib/format/megatron_torch/optimizer_merge.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/state/optim_state.h>

#include <algorithm>
#include <optional>
#include <set>

namespace tessera::megatron_torch {
namespace {

std::string id_text(const Value& key) {
  if (key.is_int()) return std::to_string(key.as_int());
  return key.is_string() ? key.as_string() : std::string();
}

/// One rank's optimizer, taken apart. Null members: it has none of that.
struct RankOptimizer {
  const RankFile* file = nullptr;
  const Value* outer = nullptr;  // what stands under `optimizer`
  const Value* inner = nullptr;  // where state and param_groups stand
  bool nested = false;           // inner is outer's own `optimizer`
  const Value* state = nullptr;
  const Value* groups = nullptr;
  const Value* masters = nullptr;
};

RankOptimizer take_apart(const RankFile& file, const Value* outer) {
  RankOptimizer out{&file, outer, outer, false, nullptr, nullptr, nullptr};
  if (!outer || !outer->is_dict()) {
    out.inner = nullptr;
    return out;
  }
  if (const Value* inner = outer->find(kOptimizer); inner && inner->is_dict()) {
    out.inner = inner;
    out.nested = true;
  }
  out.state = out.inner->find("state");
  out.groups = out.inner->find("param_groups");
  out.masters = outer->find(kMasters);
  return out;
}

/// Ids of each group, as text; groups without `params` (the distributed optimizer's) list none.
std::vector<std::vector<std::string>> group_ids(const RankOptimizer& optimizer) {
  std::vector<std::vector<std::string>> out;
  if (!optimizer.groups || optimizer.groups->kind() != Value::Kind::kList) return out;
  for (const Value& group : optimizer.groups->as_list()) {
    out.emplace_back();
    const Value* params = group.find("params");
    if (!params || params->kind() != Value::Kind::kList) continue;
    for (const Value& id : params->as_list()) out.back().push_back(id_text(id));
  }
  return out;
}

/// Ids of one rank matched with its model's tensors.
struct Matched {
  std::map<std::string, const LocalTensor*> by_id;
  std::vector<std::vector<std::string>> groups;  // ids
};

class OptimizerMerge {
 public:
  OptimizerMerge(Ranks& ranks, const std::vector<std::vector<LocalTensor>>& local)
      : ranks_(ranks), local_(local) {}

  void run() {
    std::vector<const Value*> values;
    for (const RankFile& file : ranks_.files) values.push_back(ranks_.root(file).find(kOptimizer));
    for (std::size_t i = 0; i < values.size(); ++i)
      optimizers_.push_back(take_apart(ranks_.files[i], values[i]));
    base_ = {key_item(kOptimizer)};
    if (optimizers_[0].nested) base_.push_back(key_item(kOptimizer));
    StateTable table(ranks_, base_);
    if (!is_regular() || !match_all() || !fill(table)) {
      if (has_state()) warn_unmatched();
      merge_buckets(ranks_, local_, base_);
      return add_per_rank(ranks_, {key_item(kOptimizer)}, values);
    }
    table.finish();
    merge_buckets(ranks_, local_, base_);
    add_groups();
    add_rest();
  }

 private:
  /// All ranks have the same kind of optimizer, of a kind that is taken apart here.
  bool is_regular() const {
    return std::ranges::all_of(optimizers_, [&](const RankOptimizer& o) {
      return o.inner && o.nested == optimizers_[0].nested && (o.state || o.groups) &&
             (!o.groups || o.groups->kind() == Value::Kind::kList) &&
             (!o.state || o.state->is_dict()) &&
             (!o.masters || o.masters->kind() == Value::Kind::kList);
    });
  }
  bool has_state() const {
    return std::ranges::any_of(
        optimizers_, [](const RankOptimizer& o) { return o.outer && !o.outer->is_none(); });
  }
  void warn_unmatched() {
    ranks_.findings.note(codes::kUnmatchedIds, "warning",
                         "ids of the optimizer could not be matched with parameters beyond doubt: "
                         "its state is shown as each rank stored it and cannot be resharded",
                         ranks_.files[0].path, kOptimizer);
  }

  bool match_all() {
    for (std::size_t i = 0; i < optimizers_.size(); ++i) {
      auto matched = match(optimizers_[i], local_[i]);
      if (!matched) return false;
      matched_.push_back(std::move(*matched));
    }
    return true;
  }

  /// Shape of an id's state: that of its first tensor that is no counter.
  std::optional<Shape> state_shape(const RankOptimizer& optimizer, const std::string& id) const {
    const Value* leaves = state_of(optimizer, id);
    if (!leaves || !leaves->is_dict()) return std::nullopt;
    for (const auto& [name, value] : leaves->as_dict())
      if (value.is_tensor() && id_text(name) != "step")
        return ranks_.tensor(optimizer.file->file, value.tensor_index()).shape;
    return std::nullopt;
  }
  static const Value* state_of(const RankOptimizer& optimizer, const std::string& id) {
    if (!optimizer.state) return nullptr;
    for (const auto& [key, value] : optimizer.state->as_dict())
      if (id_text(key) == id) return &value;
    return nullptr;
  }

  std::optional<Matched> match(const RankOptimizer& optimizer,
                               const std::vector<LocalTensor>& tensors) const {
    Matched out;
    out.groups = group_ids(optimizer);
    const bool any = std::ranges::any_of(out.groups, [](const auto& ids) { return !ids.empty(); });
    if (!any) return has_only_options(optimizer) ? std::optional(out) : std::nullopt;
    std::vector<std::size_t> all(out.groups.size()), decaying, others;
    for (std::size_t g = 0; g < all.size(); ++g) {
      all[g] = g;
      (has_decay(optimizer.groups->as_list()[g]) ? decaying : others).push_back(g);
    }
    std::vector<const LocalTensor*> params, matrices, vectors;
    for (const LocalTensor& tensor : tensors) {
      const ArchiveTensor& stored = ranks_.tensor(optimizer.file->file, tensor.tensor);
      if (!is_floating(stored.dtype) || tensor.fqn.ends_with("_extra_state")) continue;
      params.push_back(&tensor);
      const bool vector = stored.shape.rank() <= 1 || tensor.fqn.ends_with(".bias");
      (vector ? vectors : matrices).push_back(&tensor);
    }
    // Shapes alone, or shapes and Megatron's rule: biases and vectors do not decay.
    if (match_groups(optimizer, all, params, out)) return out;
    out.by_id.clear();
    if (match_groups(optimizer, decaying, matrices, out) &&
        match_groups(optimizer, others, vectors, out))
      return out;
    return std::nullopt;
  }

  static bool has_decay(const Value& group) {
    for (const std::string_view option : {"wd_mult", "weight_decay"}) {
      const Value* value = group.find(option);
      if (value && value->is_number() && value->as_real() == 0) return false;
    }
    return true;
  }

  /// Ids of these groups among these parameters, where there is one answer only.
  bool match_groups(const RankOptimizer& optimizer, const std::vector<std::size_t>& groups,
                    const std::vector<const LocalTensor*>& params, Matched& out) const {
    std::vector<std::optional<Shape>> shapes;
    std::vector<std::size_t> sizes;
    for (const std::size_t g : groups) {
      for (const std::string& id : out.groups[g]) shapes.push_back(state_shape(optimizer, id));
      sizes.push_back(out.groups[g].size());
    }
    std::vector<Shape> candidates;
    for (const LocalTensor* tensor : params)
      candidates.push_back(ranks_.tensor(optimizer.file->file, tensor->tensor).shape);
    const IdMapping mapping = map_ids(shapes, sizes, candidates);
    if (!mapping.complete || !mapping.certain) return false;
    std::size_t next = 0;
    for (const std::size_t g : groups)
      for (const std::string& id : out.groups[g])
        if (!out.by_id.emplace(id, params[static_cast<std::size_t>(mapping.candidate[next++])])
                 .second)
          return false;
    return true;
  }
  /// State of no parameter: values such as `common_step` at most.
  static bool has_only_options(const RankOptimizer& optimizer) {
    return !optimizer.state || std::ranges::none_of(optimizer.state->as_dict(), [](const auto& e) {
      return e.second.is_dict();
    });
  }

  bool fill(StateTable& table) const {
    for (std::size_t i = 0; i < optimizers_.size(); ++i)
      if (!fill_state(table, optimizers_[i], matched_[i]) ||
          !fill_masters(table, optimizers_[i], matched_[i]))
        return false;
    return true;
  }

  bool fill_state(StateTable& table, const RankOptimizer& optimizer, const Matched& matched) const {
    if (!optimizer.state || matched.by_id.empty()) return true;
    for (const auto& [key, leaves] : optimizer.state->as_dict()) {
      const auto owner = matched.by_id.find(id_text(key));
      if (owner == matched.by_id.end() || !leaves.is_dict()) return false;
      const LocalTensor& param = *owner->second;
      const Shape& shape = ranks_.tensor(optimizer.file->file, param.tensor).shape;
      for (const auto& [name, value] : leaves.as_dict()) {
        if (!value.is_tensor()) {
          table.add_value(*optimizer.file, param.fqn, id_text(name), value);
          continue;
        }
        const std::uint32_t tensor = value.tensor_index();
        const bool like_param = ranks_.tensor(optimizer.file->file, tensor).shape == shape;
        table.add_tensor(*optimizer.file, param.fqn, id_text(name), like_param ? param.fqn : "",
                         {optimizer.file->file, tensor, 0, std::nullopt});
      }
    }
    return true;
  }

  /// List i holds the masters of group i's 16-bit parameters, in their order.
  bool fill_masters(StateTable& table, const RankOptimizer& optimizer,
                    const Matched& matched) const {
    if (!optimizer.masters) return true;
    const ValueList& lists = optimizer.masters->as_list();
    if (lists.size() != matched.groups.size()) return false;
    for (std::size_t g = 0; g < lists.size(); ++g) {
      if (lists[g].kind() != Value::Kind::kList) return false;
      std::size_t next = 0;
      const ValueList& masters = lists[g].as_list();
      for (const std::string& id : matched.groups[g]) {
        const LocalTensor& param = *matched.by_id.at(id);
        const ArchiveTensor& stored = ranks_.tensor(optimizer.file->file, param.tensor);
        if (!is_half(stored.dtype)) continue;
        if (next == masters.size() || !masters[next].is_tensor()) return false;
        const std::uint32_t tensor = masters[next++].tensor_index();
        if (ranks_.tensor(optimizer.file->file, tensor).shape != stored.shape) return false;
        table.add_tensor(*optimizer.file, param.fqn, std::string(kMasterLeaf), param.fqn,
                         {optimizer.file->file, tensor, 0, std::nullopt});
      }
      if (next != masters.size()) return false;
    }
    return true;
  }

  struct Group {
    const RankFile* file = nullptr;
    Value options;  // without params
    bool has_params = false;
    std::vector<std::string> members;
    std::set<std::string> known;
  };

  static Value options_of(const Value& group) {
    ValueDict options;
    if (group.is_dict())
      for (const auto& [key, value] : group.as_dict())
        if (!key.is_string() || key.as_string() != "params") options.emplace_back(key, value);
    return Value::dict(std::move(options));
  }

  /// Groups of all stages with equal options are one; their members follow each other.
  void add_groups() {
    std::vector<Group> merged;
    for (std::size_t i = 0; i < optimizers_.size(); ++i) {
      if (!optimizers_[i].groups) continue;
      std::set<std::size_t> taken;
      const ValueList& groups = optimizers_[i].groups->as_list();
      for (std::size_t g = 0; g < groups.size(); ++g) {
        const std::size_t at = place_of(merged, *optimizers_[i].file, groups[g], g, taken);
        taken.insert(at);
        merged[at].has_params |= groups[g].find("params") != nullptr;
        if (g >= matched_[i].groups.size()) continue;
        for (const std::string& id : matched_[i].groups[g]) {
          const std::string& fqn = matched_[i].by_id.at(id)->fqn;
          if (merged[at].known.insert(fqn).second) merged[at].members.push_back(fqn);
        }
      }
    }
    for (std::size_t g = 0; g < merged.size(); ++g) add_group(merged[g], g);
  }

  std::size_t place_of(std::vector<Group>& merged, const RankFile& file, const Value& group,
                       std::size_t index, const std::set<std::size_t>& taken) {
    Value options = options_of(group);
    const auto fits = [&](std::size_t k) {
      return k < merged.size() && !taken.contains(k) &&
             same_value(ranks_.builder.archive(merged[k].file->file), merged[k].options,
                        ranks_.builder.archive(file.file), options);
    };
    if (fits(index)) return index;
    for (std::size_t k = 0; k < merged.size(); ++k)
      if (fits(k)) return k;
    merged.push_back({&file, std::move(options), false, {}, {}});
    return merged.size() - 1;
  }

  void add_group(const Group& group, std::size_t index) {
    ValueDict dict;
    if (group.has_params) {
      ValueList members;
      for (const std::string& fqn : group.members) members.push_back(Value::string(fqn));
      dict.emplace_back(Value::string("params"), Value::list(std::move(members)));
    }
    for (const auto& option : group.options.as_dict()) dict.push_back(option);
    ranks_.builder.add_state(group.file->file, Value::dict(std::move(dict)),
                             below(base_, {key_item("param_groups"), index_item(index)}));
  }

  /// grad_scaler, sharding types, common_step: everything else.
  void add_rest() {
    add_others(base_, [](const RankOptimizer& o) { return o.inner; },
               {"state", "param_groups", std::string(kMasters)});
    if (optimizers_[0].nested)
      add_others({key_item(kOptimizer)}, [](const RankOptimizer& o) { return o.outer; },
                 {std::string(kOptimizer), std::string(kMasters)});
    if (std::ranges::all_of(matched_, [](const Matched& m) { return m.by_id.empty(); }))
      add_others(below(base_, "state"), [](const RankOptimizer& o) { return o.state; }, {});
  }

  template <class Of>
  void add_others(const Path& path, Of of, const std::set<std::string>& known) {
    std::vector<std::string> keys;
    for (const RankOptimizer& optimizer : optimizers_) {
      const Value* dict = of(optimizer);
      if (!dict || !dict->is_dict()) continue;
      for (const auto& [key, value] : dict->as_dict())
        if (const std::string text = id_text(key);
            !known.contains(text) && std::ranges::find(keys, text) == keys.end())
          keys.push_back(text);
    }
    for (const std::string& key : keys) {
      std::vector<const Value*> values;
      for (const RankOptimizer& optimizer : optimizers_)
        values.push_back(of(optimizer) ? of(optimizer)->find(key) : nullptr);
      add_per_rank(ranks_, below(path, key), values);
    }
  }

  Ranks& ranks_;
  const std::vector<std::vector<LocalTensor>>& local_;
  std::vector<RankOptimizer> optimizers_;
  std::vector<Matched> matched_;
  Path base_;
};

}  // namespace

void merge_optimizer(Ranks& ranks, const std::vector<std::vector<LocalTensor>>& local) {
  const bool any = std::ranges::any_of(ranks.files, [&](const RankFile& file) {
    const Value* value = ranks.root(file).find(kOptimizer);
    return value && !value->is_none();
  });
  if (any) return OptimizerMerge(ranks, local).run();
  // --no-save-optim, or the key without a value.
  std::vector<const Value*> values;
  for (const RankFile& file : ranks.files) values.push_back(ranks.root(file).find(kOptimizer));
  const bool named = std::ranges::any_of(values, [](const Value* v) { return v != nullptr; });
  if (named) add_per_rank(ranks, {key_item(kOptimizer)}, values);
}

}  // namespace tessera::megatron_torch

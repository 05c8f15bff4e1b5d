#include "lib/format/megatron_torch/optim_merge.h"

#include <fmt/format.h>
#include <tessera/base/error.h>

#include <algorithm>
#include <optional>
#include <set>

#include "lib/format/megatron_torch/id_match.h"
#include "lib/format/megatron_torch/optim_parts.h"

namespace tessera::megatron_torch {
namespace {

class OptimizerMerge {
 public:
  OptimizerMerge(Ranks& ranks, const std::vector<std::vector<LocalTensor>>& local,
                 const std::vector<std::string>& names)
      : ranks_(ranks), local_(local) {
    for (const std::string& name : names) order_.emplace(name, order_.size());
  }

  void run() {
    std::vector<const Value*> values;
    for (const RankFile& file : ranks_.files) values.push_back(ranks_.root(file).find(kOptimizer));
    for (std::size_t i = 0; i < values.size(); ++i)
      optimizers_.push_back(take_apart(ranks_.files[i], values[i]));
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
    const bool nested = optimizers_[0][0].nested;
    if (!optimizers_[0][0].inner) return false;
    return all_of([&](const RankOptimizer& o) {
      if (o.outer && o.outer->is_none()) return true;  // a stage without parameters of its kind
      return o.inner && o.nested == nested && (o.state || o.groups) &&
             (!o.groups || o.groups->kind() == Value::Kind::kList) &&
             (!o.state || o.state->is_dict()) &&
             (!o.masters || o.masters->kind() == Value::Kind::kList);
    });
  }
  bool has_state() const {
    return !all_of([](const RankOptimizer& o) { return !o.outer || o.outer->is_none(); });
  }
  template <class Test>
  bool all_of(Test test) const {
    return std::ranges::all_of(
        optimizers_, [&](const auto& of_rank) { return std::ranges::all_of(of_rank, test); });
  }
  void warn_unmatched() {
    ranks_.findings.note(Finding::kUnmatchedIds, Severity::kWarning,
                         "ids of the optimizer could not be matched with parameters beyond doubt: "
                         "its state is shown as each rank stored it and cannot be resharded",
                         ranks_.files[0].path, kOptimizer);
  }

  bool match_all() {
    const bool experts = has_experts(local_);
    for (std::size_t i = 0; i < optimizers_.size(); ++i) {
      matched_.emplace_back();
      for (std::size_t c = 0; c < optimizers_[i].size(); ++c) {
        const auto tensors = share_of(local_[i], c, optimizers_[i].size(), experts);
        auto matched = tensors ? match_ids(ranks_, optimizers_[i][c], *tensors) : std::nullopt;
        if (!matched) return false;
        matched_.back().push_back(std::move(*matched));
      }
    }
    return true;
  }

  bool fill(StateTable& table) const {
    for (std::size_t i = 0; i < optimizers_.size(); ++i)
      for (std::size_t c = 0; c < optimizers_[i].size(); ++c)
        if (!fill_state(table, optimizers_[i][c], matched_[i][c]) ||
            !fill_masters(table, optimizers_[i][c], matched_[i][c]))
          return false;
    return true;
  }

  bool fill_state(StateTable& table, const RankOptimizer& optimizer,
                  const MatchedIds& matched) const {
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
                         {optimizer.file->file, tensor, 0, like_param ? param.view : std::nullopt});
      }
    }
    return true;
  }

  /// List i holds the masters of group i's 16-bit parameters, in their order.
  bool fill_masters(StateTable& table, const RankOptimizer& optimizer,
                    const MatchedIds& matched) const {
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
                         {optimizer.file->file, tensor, 0, param.view});
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
    std::optional<std::vector<std::string>> recorded;  // all members, as the source listed them
    bool names_are_ids = false;  // its option `param_names` says the names of this rank's ids
  };

  static Value options_of(const Value& group) {
    ValueDict options;
    if (group.is_dict())
      for (const auto& [key, value] : group.as_dict())
        if (!key.is_string() || (key.as_string() != "params" && key.as_string() != kMembers))
          options.emplace_back(key, value);
    return Value::dict(std::move(options));
  }
  /// Whether a group is that of experts is a matter of the layout, and so are the names of a
  /// rank's ids, where all members are recorded.
  static Value compared(const Value& options, bool recorded) {
    ValueDict out;
    for (const auto& option : options.as_dict()) {
      const std::string key = id_text(option.first);
      if (key != kExpertFlag && (!recorded || key != kParamNames)) out.push_back(option);
    }
    return Value::dict(std::move(out));
  }

  /// Groups of all stages and all optimizers with equal options are one; their members follow each
  /// other.
  void add_groups() {
    std::vector<Group> merged;
    for (std::size_t i = 0; i < optimizers_.size(); ++i)
      for (std::size_t c = 0; c < optimizers_[i].size(); ++c)
        merge_groups(merged, optimizers_[i][c], matched_[i][c]);
    for (std::size_t g = 0; g < merged.size(); ++g) {
      std::ranges::stable_sort(merged[g].members, {},
                               [this](const std::string& fqn) { return order_.at(fqn); });
      if (merged[g].recorded) merged[g].members = *merged[g].recorded;
      add_group(merged[g], g);
    }
  }

  void merge_groups(std::vector<Group>& merged, const RankOptimizer& optimizer,
                    const MatchedIds& matched) {
    if (!optimizer.groups) return;
    std::set<std::size_t> taken;
    const ValueList& groups = optimizer.groups->as_list();
    for (std::size_t g = 0; g < groups.size(); ++g) {
      const std::size_t known = merged.size();
      const std::size_t at = place_of(merged, *optimizer.file, groups[g], g, taken);
      taken.insert(at);
      merged[at].has_params |= groups[g].find("params") != nullptr;
      if (g >= matched.groups.size()) continue;
      ValueList names;
      for (const std::string& id : matched.groups[g]) {
        const std::string& fqn = matched.by_id.at(id)->fqn;
        names.push_back(Value::string(fqn));
        if (merged[at].known.insert(fqn).second) merged[at].members.push_back(fqn);
      }
      const Value* stated = groups[g].find(kParamNames);
      if (at == known)
        merged[at].names_are_ids = stated != nullptr && *stated == Value::list(std::move(names));
    }
  }

  std::size_t place_of(std::vector<Group>& merged, const RankFile& file, const Value& group,
                       std::size_t index, const std::set<std::size_t>& taken) {
    Value options = options_of(group);
    auto recorded = recorded_members(group);
    const Value wanted = compared(options, recorded.has_value());
    const auto fits = [&](std::size_t k) {
      return k < merged.size() && !taken.contains(k) && merged[k].recorded == recorded &&
             same_value(ranks_.builder.archive(merged[k].file->file),
                        compared(merged[k].options, recorded.has_value()),
                        ranks_.builder.archive(file.file), wanted);
    };
    if (fits(index)) return index;
    for (std::size_t k = 0; k < merged.size(); ++k)
      if (fits(k)) return k;
    merged.push_back({&file, std::move(options), false, {}, {}, std::move(recorded), false});
    return merged.size() - 1;
  }

  void add_group(const Group& group, std::size_t index) {
    ValueDict dict;
    if (group.has_params) dict.emplace_back(Value::string("params"), names_value(group.members));
    for (const auto& option : group.options.as_dict()) {
      const bool all_names =
          group.recorded && group.names_are_ids && id_text(option.first) == kParamNames;
      dict.emplace_back(option.first, all_names ? names_value(group.members) : option.second);
    }
    ranks_.builder.add_state(group.file->file, Value::dict(std::move(dict)),
                             below(base_, {key_item("param_groups"), index_item(index)}));
  }

  /// grad_scaler, sharding types, common_step: everything else.
  void add_rest() {
    const bool nested = optimizers_[0][0].nested;
    add_others(nested ? below(base_, kOptimizer) : base_,
               [](const RankOptimizer& o) { return o.inner; },
               {"state", "param_groups", std::string(kMasters)});
    if (nested)
      add_others(base_, [](const RankOptimizer& o) { return o.outer; },
                 {std::string(kOptimizer), std::string(kMasters)});
    const bool by_id = std::ranges::any_of(matched_, [](const auto& of_rank) {
      return std::ranges::any_of(of_rank, [](const MatchedIds& m) { return !m.by_id.empty(); });
    });
    if (!by_id)
      add_others(below(base_, "state"), [](const RankOptimizer& o) { return o.state; }, {});
  }

  template <class Of>
  void add_others(const Path& path, Of of, const std::set<std::string>& known) {
    std::vector<std::string> keys;
    for (const auto& of_rank : optimizers_) {
      for (const RankOptimizer& optimizer : of_rank) {
        const Value* dict = of(optimizer);
        if (!dict || !dict->is_dict()) continue;
        for (const auto& [key, value] : dict->as_dict())
          if (const std::string text = id_text(key);
              !known.contains(text) && std::ranges::find(keys, text) == keys.end())
            keys.push_back(text);
      }
    }
    for (const std::string& key : keys) {
      std::vector<const Value*> values;
      for (const auto& of_rank : optimizers_)
        values.push_back(value_of(of_rank, below(path, key), key, of));
      add_per_rank(ranks_, below(path, key), values);
    }
  }

  /// What a rank's optimizers say under `key`: they run in step and should agree.
  template <class Of>
  const Value* value_of(const std::vector<RankOptimizer>& of_rank, const Path& path,
                        const std::string& key, Of of) {
    const Value* out = nullptr;
    for (const RankOptimizer& optimizer : of_rank) {
      const Value* dict = of(optimizer);
      const Value* value = dict && dict->is_dict() ? dict->find(key) : nullptr;
      if (!value) continue;
      const TorchArchive& archive = ranks_.builder.archive(optimizer.file->file);
      if (out && !same_value(archive, *out, archive, *value))
        ranks_.findings.note(Finding::kDifferentValues, Severity::kWarning,
                             "the optimizers of a rank stored different values; the first is used",
                             optimizer.file->path, dotted(path));
      if (!out) out = value;
    }
    return out;
  }

  Ranks& ranks_;
  const std::vector<std::vector<LocalTensor>>& local_;
  std::vector<std::vector<RankOptimizer>> optimizers_;  // per rank file
  std::vector<std::vector<MatchedIds>> matched_;
  std::map<std::string, std::size_t> order_;
  const Path base_ = {key_item(kOptimizer)};
};

}  // namespace

void merge_optimizer(Ranks& ranks, const std::vector<std::vector<LocalTensor>>& local,
                     const std::vector<std::string>& names) {
  const bool any = std::ranges::any_of(ranks.files, [&](const RankFile& file) {
    const Value* value = ranks.root(file).find(kOptimizer);
    return value && !value->is_none();
  });
  if (any) return OptimizerMerge(ranks, local, names).run();
  // --no-save-optim, or the key without a value.
  std::vector<const Value*> values;
  for (const RankFile& file : ranks.files) values.push_back(ranks.root(file).find(kOptimizer));
  const bool named = std::ranges::any_of(values, [](const Value* v) { return v != nullptr; });
  if (named) add_per_rank(ranks, {key_item(kOptimizer)}, values);
}

}  // namespace tessera::megatron_torch

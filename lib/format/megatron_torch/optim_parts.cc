#include "lib/format/megatron_torch/optim_parts.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "lib/format/megatron_torch/id_match.h"
#include "lib/format/megatron_torch/optim_merge.h"
#include "lib/state/parameter_shape.h"

namespace tessera::megatron_torch {
namespace {

RankOptimizer take_one(const RankFile& file, const Value* outer) {
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

const Value* state_of(const RankOptimizer& optimizer, const std::string& id) {
  if (!optimizer.state) return nullptr;
  for (const auto& [key, value] : optimizer.state->as_dict())
    if (id_text(key) == id) return &value;
  return nullptr;
}

/// State of no parameter: values such as `common_step` at most.
bool has_only_options(const RankOptimizer& optimizer) {
  return !optimizer.state || std::ranges::none_of(optimizer.state->as_dict(),
                                                  [](const auto& e) { return e.second.is_dict(); });
}

class Matcher {
 public:
  Matcher(const Ranks& ranks, const RankOptimizer& optimizer,
          const std::vector<const LocalTensor*>& tensors)
      : ranks_(ranks), optimizer_(optimizer), tensors_(tensors) {}

  std::optional<MatchedIds> match() {
    out_.groups = group_ids(optimizer_);
    const bool any = std::ranges::any_of(out_.groups, [](const auto& ids) { return !ids.empty(); });
    if (!any) return has_only_options(optimizer_) ? std::optional(out_) : std::nullopt;
    std::optional<IdMatch> answer = by_record();
    if (!answer) answer = by_shape();
    if (!answer) return std::nullopt;
    for (std::size_t g = 0; g < out_.groups.size(); ++g)
      for (std::size_t i = 0; i < out_.groups[g].size(); ++i)
        if (!out_.by_id.emplace(out_.groups[g][i], tensors_[(*answer)[g][i]]).second)
          return std::nullopt;
    return std::move(out_);
  }

 private:
  /// By the names that every group records.
  std::optional<IdMatch> by_record() const {
    IdMatch answer(out_.groups.size());
    for (std::size_t g = 0; g < out_.groups.size(); ++g) {
      const auto names = recorded_members(optimizer_.groups->as_list()[g]);
      if (!names) return std::nullopt;
      const std::set<std::string_view> known(names->begin(), names->end());
      for (std::size_t t = 0; t < tensors_.size(); ++t)
        if (known.contains(tensors_[t]->fqn)) answer[g].push_back(t);
      if (answer[g].size() != out_.groups[g].size()) return std::nullopt;
    }
    return answer;
  }

  std::optional<IdMatch> by_shape() const {
    std::vector<IdGroup> groups;
    for (std::size_t g = 0; g < out_.groups.size(); ++g) {
      groups.push_back({{}, has_decay(optimizer_.groups->as_list()[g])});
      for (const std::string& id : out_.groups[g]) groups.back().shapes.push_back(state_shape(id));
    }
    std::vector<IdCandidate> candidates;
    for (const LocalTensor* tensor : tensors_) {
      const ArchiveTensor& stored = ranks_.tensor(optimizer_.file->file, tensor->tensor);
      candidates.push_back({tensor->fqn, stored.shape, stored.dtype});
    }
    return match_by_shape(groups, candidates);
  }

  std::optional<Shape> state_shape(const std::string& id) const {
    const Value* leaves = state_of(optimizer_, id);
    if (!leaves || !leaves->is_dict()) return std::nullopt;
    std::vector<std::pair<std::string_view, Shape>> shapes;
    for (const auto& [name, value] : leaves->as_dict())
      if (value.is_tensor() && name.is_string())
        shapes.emplace_back(name.as_string(),
                            ranks_.tensor(optimizer_.file->file, value.tensor_index()).shape);
    return parameter_shape(shapes);
  }

  const Ranks& ranks_;
  const RankOptimizer& optimizer_;
  const std::vector<const LocalTensor*>& tensors_;
  MatchedIds out_;
};

}  // namespace

std::string id_text(const Value& key) {
  if (key.is_int()) return std::to_string(key.as_int());
  return key.is_string() ? key.as_string() : std::string();
}

bool has_decay(const Value& group) {
  for (const std::string_view option : {"wd_mult", "weight_decay"}) {
    const Value* value = group.find(option);
    if (value && value->is_number() && value->as_real() == 0) return false;
  }
  return true;
}

std::vector<RankOptimizer> take_apart(const RankFile& file, const Value* value) {
  std::vector<RankOptimizer> out;
  if (value && value->kind() == Value::Kind::kList && !value->as_list().empty()) {
    for (const Value& one : value->as_list()) out.push_back(take_one(file, &one));
  } else {
    out.push_back(take_one(file, value));
  }
  return out;
}

std::optional<MatchedIds> match_ids(const Ranks& ranks, const RankOptimizer& optimizer,
                                    const std::vector<const LocalTensor*>& tensors) {
  return Matcher(ranks, optimizer, tensors).match();
}

bool has_experts(const std::vector<std::vector<LocalTensor>>& local) {
  return std::ranges::any_of(local, [](const auto& tensors) {
    return std::ranges::any_of(tensors, [](const LocalTensor& t) { return is_expert(t.fqn); });
  });
}

std::optional<std::vector<const LocalTensor*>> share_of(const std::vector<LocalTensor>& tensors,
                                                        std::size_t index, std::size_t count,
                                                        bool experts) {
  const std::size_t dense = count - (experts && count > 1 ? 1 : 0);
  // Two for dense parameters: the first model chunk's, and all others' (overlapped gather).
  if (dense > 2) return std::nullopt;
  std::vector<const LocalTensor*> out;
  for (const LocalTensor& tensor : tensors) {
    const bool of_expert = count > 1 && is_expert(tensor.fqn);
    const bool in_chunk = dense == 1 || (tensor.chunk > 0) == (index > 0);
    if (index >= dense ? of_expert : !of_expert && in_chunk) out.push_back(&tensor);
  }
  return out;
}

}  // namespace tessera::megatron_torch

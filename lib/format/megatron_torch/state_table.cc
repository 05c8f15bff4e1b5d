// State of whole parameters, put together rank by rank.
#include <fmt/format.h>

#include <utility>

#include "lib/format/megatron_torch/optim_merge.h"
#include "lib/format/megatron_torch/packed_experts.h"

namespace tessera::megatron_torch {

StateTable::Leaf& StateTable::leaf(const std::string& fqn, const std::string& name) {
  const auto [found, fresh] = index_.try_emplace({fqn, name}, leaves_.size());
  if (fresh) {
    leaves_.emplace_back();
    leaves_.back().path = below(base_, {key_item("state"), key_item(fqn), key_item(name)});
  }
  return leaves_[found->second];
}

void StateTable::add_tensor(const RankFile& file, const std::string& fqn, const std::string& name,
                            const std::string& rule_name, Part part) {
  Leaf& known = leaf(fqn, name);
  known.rule_name = rule_name;
  const bool packed = is_packed(rule_name) && part.view && part.view->rank() > 2;
  const SetPlace place = ranks_.place(file.rank, packed);
  const auto [set, fresh] = known.sets.try_emplace(place.set, known.replicas.size());
  if (fresh) known.replicas.emplace_back(place.slots);
  known.replicas[set->second][place.slot] = std::move(part);
}

void StateTable::add_value(const RankFile& file, const std::string& fqn, const std::string& name,
                           const Value& value) {
  Leaf& known = leaf(fqn, name);
  if (!known.has_value) {
    known.file = file.file;
    known.value = value;
    known.has_value = true;
  } else if (!(known.value == value)) {
    ranks_.findings.note(Finding::kDifferentValues, Severity::kWarning,
                         "ranks stored different values; the first rank's is used", file.path,
                         dotted(known.path));
  }
}

void StateTable::finish() {
  TensorMerge merge(ranks_);
  for (const Leaf& known : leaves_) {
    if (!known.replicas.empty()) {
      merge.add(known.path, known.rule_name, known.replicas);
    } else {
      ranks_.builder.add_value(known.file, known.path, known.value);
    }
  }
}

void add_per_rank(Ranks& ranks, const Path& path, const std::vector<const Value*>& values) {
  const RankFile& first = ranks.files[0];
  bool same = values[0] != nullptr;
  for (std::size_t i = 1; i < values.size() && same; ++i)
    same = values[i] && same_value(ranks.builder.archive(first.file), *values[0],
                                   ranks.builder.archive(ranks.files[i].file), *values[i]);
  const auto add = [&](std::size_t i, const Path& at, std::optional<std::int64_t> rank = {}) {
    const Path parent(at.begin(), at.end() - 1);
    ranks.builder.add_state(ranks.files[i].file,
                            Value::dict({{Value::string(at.back().text()), *values[i]}}), parent,
                            rank);
  };
  if (same) return add(0, path);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!values[i]) continue;
    const std::int64_t rank = ranks.number(ranks.files[i].rank);
    add(i, below(path, {key_item(fmt::format("rank_{}", rank))}), rank);
  }
}

}  // namespace tessera::megatron_torch

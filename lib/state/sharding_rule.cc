#include <tessera/base/text.h>
#include <tessera/state/roles.h>
#include <tessera/state/sharding_rule.h>

#include <algorithm>
#include <map>

namespace tessera {
namespace {

/// More than one distinct chunk: exact replicas of one chunk are not a split.
bool is_split(const Manifest& source, const StoredTensor& tensor) {
  for (std::uint32_t i = 1; i < tensor.chunk_count; ++i)
    if (!(source.chunk(tensor, i) == source.chunk(tensor, 0))) return true;
  return false;
}

/// Shapes of the model's parameters by FQN, for state of one-rank checkpoints.
class OneRankRule {
 public:
  explicit OneRankRule(const Manifest& source)
      : roles_(find_roles(source.state)),
        applies_((!source.world_size || *source.world_size <= 1) &&
                 !source.provenance.contains(std::string(kShardingListed))) {
    if (!applies_) return;
    role_of_.assign(source.tensors.size(), nullptr);
    for (std::size_t i = 0; i < roles_.entries.size(); ++i) {
      const Value& value = source.state.entries[i].value;
      if (!value.is_tensor()) continue;
      role_of_[value.tensor_index()] = &roles_.entries[i];
      if (roles_.entries[i].role == Role::kModel)
        shapes_[roles_.entries[i].fqn] = source.tensors[value.tensor_index()].spec.shape;
    }
  }

  bool splits(const Manifest& source, std::size_t index) const {
    const StoredTensor& tensor = source.tensors[index];
    if (!applies_ || tensor.embedded) return false;
    if (tensor.kind == TensorKind::kParam) return true;
    if (tensor.kind != TensorKind::kOptim && tensor.kind != TensorKind::kMaster) return false;
    const EntryRole* role = role_of_[index];
    if (!role || role->role != Role::kOptimState) return false;
    const auto parameter = shapes_.find(role->fqn);
    // Keyed by id (or the weights are elsewhere): a moment has the shape of its parameter, `step`
    // is 0-dim.
    return parameter == shapes_.end() ? is_known_optimizer_leaf(role->leaf) && role->leaf != "step"
                                      : parameter->second == tensor.spec.shape;
  }

 private:
  Roles roles_;
  bool applies_;
  std::vector<const EntryRole*> role_of_;
  std::map<std::string, Shape> shapes_;
};

}  // namespace

std::vector<bool> sharded_tensors(const Manifest& source,
                                  std::span<const std::string> replicate_globs) {
  const OneRankRule one_rank(source);
  std::vector<bool> sharded(source.tensors.size());
  for (std::size_t i = 0; i < source.tensors.size(); ++i) {
    const StoredTensor& tensor = source.tensors[i];
    const bool replicated = std::ranges::any_of(
        replicate_globs, [&](const std::string& glob) { return glob_match(glob, tensor.name); });
    sharded[i] = !replicated && !tensor.embedded && tensor.spec.shape.rank() >= 1 &&
                 (tensor.always_sharded || is_split(source, tensor) || one_rank.splits(source, i));
  }
  return sharded;
}

bool is_sharded(const Manifest& source, const StoredTensor& tensor,
                std::span<const std::string> replicate_globs) {
  return sharded_tensors(
      source, replicate_globs)[static_cast<std::size_t>(&tensor - source.tensors.data())];
}

}  // namespace tessera

// torch.optim's state of FSDP1 beside a model that was saved sharded: runs of flat parameters,
// whose own shards stand in no file. verl saves FSDP1 so.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include <algorithm>
#include <map>

#include "lib/format/torch_rank_files/local_leaves.h"
#include "lib/format/torch_rank_files/local_state.h"

namespace tessera::rank_files {

void LocalState::find_flat_state() {
  const bool sharded = std::ranges::any_of(
      states_.entries, [](const RankEntry& entry) { return entry.is_sharded(); });
  if (sharded && states_.folder.world_size > 1)
    std::erase_if(optimizers_, [&](const Optimizer& one) { return !has_flat_state(one); });
  else
    optimizers_.clear();
  state_alone_ = !optimizers_.empty();
}

/// State by id that is plain, 1-D and not the same on all ranks: each rank has a run of it.
bool LocalState::has_flat_state(const Optimizer& optimizer) {
  bool differs = false;
  for (const RankEntry& entry : states_.entries) {
    if (!state_id(entry.path, optimizer.prefix)) continue;
    if (entry.is_sharded()) return false;
    if (differs || !all_arrays(entry, bytes_)) continue;
    const RankLeaf& first = entry.leaves.front();
    const TensorRef one{first.file, first.value.tensor_index()};
    differs = std::ranges::any_of(entry.leaves, [&](const RankLeaf& leaf) {
      const TensorRef other{leaf.file, leaf.value.tensor_index()};
      return bytes_.same(one, other) == ArchiveBytes::Answer::kDifferent;
    });
  }
  return differs;
}

/// The flat parameters that the record speaks of, of the types of the weights.
void LocalState::add_units_of(const FlatRecord& record) {
  std::map<std::string, const TensorSpec*> weights;
  for (const RankEntry& entry : states_.entries)
    if (entry.is_sharded() && !entry.path.empty())
      weights.emplace(entry.path.back().key, &entry.leaves.front().sharded->spec);
  // A rank holds as much of each flat parameter as every other; of a parameter it may hold nothing.
  bool even = true;
  std::size_t ranks = 0;
  for (const RankEntry& entry : states_.entries)
    for (const Optimizer& optimizer : optimizers_) {
      if (!state_id(entry.path, optimizer.prefix) || !all_arrays(entry, bytes_)) continue;
      even = even && (ranks == 0 || entry.leaves.size() == ranks);
      ranks = entry.leaves.size();
      for (const RankLeaf& leaf : entry.leaves)
        even = even && numel_of(leaf, bytes_) == numel_of(entry.leaves.front(), bytes_);
    }
  for (const FlatUnit& known : record.units) {
    Unit unit;
    unit.name = known.name;
    for (const FlatParameter& parameter : known.parameters) {
      const auto weight = weights.find(parameter.fqn);
      if (weight == weights.end() || weight->second->shape != parameter.shape)
        fail(Code::kCorrupt,
             fmt::format(
                 "the flat layout speaks of \"{}\" of shape {}, which the model here has not",
                 printable(parameter.fqn), parameter.shape.to_string()),
             "it is the layout of another model");
      unit.dtype = weight->second->dtype;
    }
    const std::int64_t natural = 16 / std::max<std::int64_t>(1, element_bytes(unit.dtype));
    const std::int64_t alignment = known.alignment > 0 ? known.alignment : even ? 1 : natural;
    const FlatLayout layout(known.parameters, states_.folder.world_size, alignment);
    unit.shard_numel = layout.shard_numel();
    // use_orig_params counts the padding at the end.
    unit.numel =
        alignment > 1 ? unit.shard_numel * states_.folder.world_size : layout.unpadded_numel();
    units_.push_back(std::move(unit));
  }
}

}  // namespace tessera::rank_files

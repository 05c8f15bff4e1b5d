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
  if (!sharded || states_.folder.world_size < 2) optimizers_.clear();
  std::size_t ranks = 0;
  std::erase_if(optimizers_, [&](const Optimizer& one) {
    const FlatState state = flat_state_of(one);
    if (!state.found) return true;
    even_ = even_ && state.even && (ranks == 0 || state.ranks == ranks);
    ranks = state.ranks;
    return false;
  });
  state_alone_ = !optimizers_.empty();
}

/// State by id that is plain, 1-D and not the same on all ranks: each rank has a run of it.
LocalState::FlatState LocalState::flat_state_of(const Optimizer& optimizer) {
  FlatState state;
  for (const RankEntry& entry : states_.entries) {
    if (!state_id(entry.path, optimizer.prefix)) continue;
    if (entry.is_sharded()) return {};
    if (!all_arrays(entry, bytes_)) continue;
    const RankLeaf& first = entry.leaves.front();
    const TensorRef one{first.file, first.value.tensor_index()};
    state.even = state.even && (state.ranks == 0 || entry.leaves.size() == state.ranks);
    state.ranks = entry.leaves.size();
    for (const RankLeaf& leaf : entry.leaves) {
      state.even = state.even && numel_of(leaf, bytes_) == numel_of(first, bytes_);
      if (state.found) continue;
      const TensorRef other{leaf.file, leaf.value.tensor_index()};
      state.found = bytes_.same(one, other) == ArchiveBytes::Answer::kDifferent;
    }
  }
  return state;
}

/// The flat parameters that the record speaks of, of the types of the weights.
void LocalState::add_units_of(const FlatRecord& record) {
  std::map<std::string, const TensorSpec*> weights;
  for (const RankEntry& entry : states_.entries)
    if (entry.is_sharded() && !entry.path.empty())
      weights.emplace(entry.path.back().key, &entry.leaves.front().sharded->spec);
  for (const FlatUnit& known : record.units) {
    Unit unit;
    unit.name = known.name;
    for (const FlatParameter& parameter : known.parameters) {
      const auto weight = weights.find(parameter.fqn);
      if (weight == weights.end() || weight->second->shape != parameter.shape)
        fail(Code::kCorrupt,
             fmt::format("the flat layout lists \"{}\" of shape {}, which this model does not have",
                         printable(parameter.fqn), parameter.shape.to_string()),
             "it is the layout of another model");
      unit.dtype = weight->second->dtype;
    }
    const std::int64_t natural = 16 / std::max<std::int64_t>(1, element_bytes(unit.dtype));
    const std::int64_t alignment = known.alignment > 0 ? known.alignment : even_ ? 1 : natural;
    const FlatLayout layout(known.parameters, states_.folder.world_size, alignment);
    unit.shard_numel = layout.shard_numel();
    // use_orig_params counts the padding at the end.
    unit.numel =
        alignment > 1 ? unit.shard_numel * states_.folder.world_size : layout.unpadded_numel();
    units_.push_back(std::move(unit));
  }
}

}  // namespace tessera::rank_files

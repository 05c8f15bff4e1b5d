#pragma once
// The optimizer as FairScale reads it: each rank's own state_dict() cut like its weights, or the
// gathered one for get_shard_from_optim_state_dict(). Pure.
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "lib/format/fairscale_fsdp/rest.h"
#include "lib/format/torch_files/archive_draft.h"

namespace tessera::fairscale {

struct OptimWriter {
  const Manifest& source;
  const Target& target;
  const TargetOptimizer& optimizer;
  const RestOfState& rest;
  std::vector<Note> notes = {};

  /// The dtype of all these steps when every one's value is known; nullopt: they stay tensors.
  std::optional<DType> step_dtype() const;

  /// A rank's shard of one leaf of a backing parameter, from the leaf's tensors by parameter.
  using Shard =
      std::function<Value(std::size_t backing, const std::vector<std::uint32_t>& tensors)>;
  Value of_rank(ArchiveDraft& draft, std::int64_t rank, const Shard& shard) const;
  Value gathered(ArchiveDraft& draft);

 private:
  /// Backing parameters in the order in which torch.optim numbers them: group by group.
  std::vector<std::vector<std::size_t>> members_by_group() const;
  Value whole_leaf(ArchiveDraft& draft, const GroupedLeaf& leaf) const;
  Value gathered_leaf(ArchiveDraft& draft, const GroupedLeaf& leaf, bool numbers) const;
  Value state_of(ArchiveDraft& draft, std::size_t parameter, bool numbers) const;
  Value groups(ArchiveDraft& draft, std::vector<ValueList> members) const;
  Value leaf_of_rank(ArchiveDraft& draft, std::int64_t rank, std::size_t backing, std::size_t leaf,
                     const Shard& shard) const;
  void add_maps(ValueDict& out);
  void note_limits(const std::vector<bool>& used);
};

}  // namespace tessera::fairscale

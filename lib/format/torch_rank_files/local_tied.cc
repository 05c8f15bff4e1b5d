// Tied weights of LOCAL state dicts with use_orig_params: a parameter's run stands under each of
// its names, and all of them are one storage. Names prove nothing; the storage does.
#include <algorithm>
#include <map>
#include <tuple>

#include "lib/format/torch_rank_files/local_leaves.h"
#include "lib/format/torch_rank_files/local_output.h"
#include "lib/format/torch_rank_files/local_state.h"
#include "lib/state/same_bytes.h"

namespace tessera::rank_files {

/// A weight that is tied to another is in no flat parameter of its own, and no record speaks of its
/// other name: its runs are the very elements of the other's, on every rank that holds any.
void LocalState::find_tied_slices() {
  using Place = std::tuple<std::uint32_t, std::uint32_t, std::int64_t>;  // file, storage, offset
  const auto place_of = [&](const RankEntry& entry) {
    std::optional<Place> place;
    for (const RankLeaf& leaf : entry.leaves) {
      if (place || numel_of(leaf, bytes_) == 0) continue;
      const ArchiveTensor& tensor = bytes_.tensor({leaf.file, leaf.value.tensor_index()});
      place = Place(leaf.file, tensor.storage, tensor.storage_offset);
    }
    return place;
  };
  std::map<Place, const RankEntry*> known;
  for (const RankEntry& entry : states_.entries)
    if (slices_.contains(entry.name) && all_arrays(entry, bytes_))
      if (const auto place = place_of(entry)) known.emplace(*place, &entry);
  for (const RankEntry& entry : states_.entries) {
    if (known.empty() || slices_.contains(entry.name) || !all_arrays(entry, bytes_)) continue;
    const auto place = place_of(entry);
    const auto other = place ? known.find(*place) : known.end();
    if (other != known.end() &&
        std::ranges::equal(entry.leaves, other->second->leaves,
                           [&](const RankLeaf& a, const RankLeaf& b) { return is_same_run(a, b); }))
      slices_.emplace(entry.name, slices_.at(other->second->name));
  }
}

bool LocalState::is_same_run(const RankLeaf& a, const RankLeaf& b) const {
  if (a.rank != b.rank || a.file != b.file || !is_array(a, bytes_) || !is_array(b, bytes_))
    return false;
  const ArchiveTensor &one = bytes_.tensor({a.file, a.value.tensor_index()}),
                      &other = bytes_.tensor({b.file, b.value.tensor_index()});
  if (one.dtype != other.dtype || one.shape != other.shape) return false;
  return one.shape.numel() == 0 ||  // an empty one has no place
         (one.storage == other.storage && one.storage_offset == other.storage_offset &&
          one.strides == other.strides && one.flags == other.flags);
}

/// Other names of a parameter that another entry gave: runs of theirs stand in the files, too.
void LocalOutput::find_tied(const std::vector<bool>& kept) {
  const auto tensor = [&](std::size_t e) { return entry(e).value.tensor_index(); };
  std::map<std::pair<std::uint32_t, std::uint64_t>, std::size_t> known;  // where it begins -> entry
  const auto place_of = [&](std::size_t e) {
    const StoredTensor& stored = source_.tensors[tensor(e)];
    const Source source = stored.chunk_count > 0 ? source_.source(stored, 0) : Source{};
    return std::pair(source.file, source.offset);
  };
  for (const auto& [e, member] : weights_) known.emplace(place_of(e), e);
  for (std::size_t e = 0; e < kept.size(); ++e) {
    if (!kept[e] || weights_.contains(e) || !entry(e).value.is_tensor()) continue;
    const auto other = known.find(place_of(e));
    const bool has_elements = source_.tensors[tensor(e)].spec.shape.numel() > 0;
    if (other != known.end() && has_elements &&
        same_bytes(source_, tensor(e), tensor(other->second)))
      tied_.emplace(e, weights_.at(other->second));
  }
}

}  // namespace tessera::rank_files

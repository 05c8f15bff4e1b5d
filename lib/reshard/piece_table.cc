#include "lib/reshard/piece_table.h"

#include <numeric>

namespace tessera {

void PieceTable::add(RegionView region, std::uint32_t owner, std::int64_t chunk_offset) {
  bounds_.insert(bounds_.end(), region.begin(), region.end());
  owners_.push_back(owner);
  offsets_.push_back(chunk_offset);
}

void PieceTable::seal() {
  std::size_t n = size();
  sort_dim_ = 0;
  for (std::size_t d = 0; d < rank_; ++d) {
    bool differs = false;
    for (std::size_t i = 1; i < n && !differs; ++i) {
      differs = bounds_[i * rank_ + d].begin != bounds_[d].begin;
    }
    if (differs) {
      sort_dim_ = d;
      break;
    }
  }
  std::vector<std::size_t> order(n);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [this](std::size_t a, std::size_t b) {
    return bounds_[a * rank_ + sort_dim_].begin < bounds_[b * rank_ + sort_dim_].begin;
  });
  std::vector<Interval> bounds;
  std::vector<std::uint32_t> owners;
  std::vector<std::int64_t> offsets;
  bounds.reserve(bounds_.size());
  owners.reserve(n);
  offsets.reserve(n);
  reach_.clear();
  reach_.reserve(n);
  for (std::size_t i : order) {
    RegionView r = region(i);
    bounds.insert(bounds.end(), r.begin(), r.end());
    owners.push_back(owners_[i]);
    offsets.push_back(offsets_[i]);
    std::int64_t end = r[sort_dim_].end;
    reach_.push_back(reach_.empty() ? end : std::max(reach_.back(), end));
  }
  bounds_ = std::move(bounds);
  owners_ = std::move(owners);
  offsets_ = std::move(offsets);
}

std::size_t PieceTable::memory_bytes() const {
  return bounds_.size() * sizeof(Interval) +
         size() * (sizeof(std::uint32_t) + 2 * sizeof(std::int64_t));
}

}  // namespace tessera

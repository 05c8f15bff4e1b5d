#pragma once
// PieceTable: the dense boxes of one tensor's chunks, packed and sorted, so that "which of them
// touch this region?" costs O(log n + hits) for row shards and grids.
//
// A Region is one half-open interval per dim of the collapsed tensor (geometry.h); its rank is at
// least 1.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tessera {

struct Interval {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t size() const { return end - begin; }
  bool operator==(const Interval&) const = default;
};
using Region = std::vector<Interval>;
using RegionView = std::span<const Interval>;

inline std::int64_t region_numel(RegionView region) {
  std::int64_t numel = 1;
  for (const Interval& i : region) numel *= i.size();
  return numel;
}

/// Row-major element number of the first point of `inner` in the dense array `outer`.
inline std::int64_t offset_inside(RegionView outer, RegionView inner) {
  std::int64_t at = 0;
  for (std::size_t d = 0; d < outer.size(); ++d) {
    at = at * outer[d].size() + (inner[d].begin - outer[d].begin);
  }
  return at;
}

/// The common part in `out` (same rank); false when it is empty.
inline bool intersect_regions(RegionView a, RegionView b, Region& out) {
  out.resize(a.size());
  for (std::size_t d = 0; d < a.size(); ++d) {
    out[d] = {std::max(a[d].begin, b[d].begin), std::min(a[d].end, b[d].end)};
    if (out[d].begin >= out[d].end) return false;
  }
  return true;
}

class PieceTable {
 public:
  explicit PieceTable(int rank = 1) : rank_(static_cast<std::size_t>(rank)) {}

  /// `owner`: the caller's number of the chunk; `chunk_offset`: elements of its own ravel before
  /// this piece.
  void add(RegionView region, std::uint32_t owner, std::int64_t chunk_offset);
  /// Sorts; call once, after the last add and before the first query.
  void seal();

  std::size_t size() const { return owners_.size(); }
  RegionView region(std::size_t i) const { return {bounds_.data() + i * rank_, rank_}; }
  std::uint32_t owner(std::size_t i) const { return owners_[i]; }
  std::int64_t chunk_offset(std::size_t i) const { return offsets_[i]; }
  std::size_t memory_bytes() const;

  /// Calls visit(piece, common) for every piece that shares a point with `region`; `common` is
  /// reused between calls.
  template <class Visit>
  void query(RegionView region, Visit&& visit) const {
    const Interval& key = region[sort_dim_];
    auto first = std::upper_bound(reach_.begin(), reach_.end(), key.begin);
    Region common;
    for (auto i = static_cast<std::size_t>(first - reach_.begin()); i < size(); ++i) {
      RegionView piece = this->region(i);
      if (piece[sort_dim_].begin >= key.end) break;
      if (intersect_regions(piece, region, common)) visit(i, static_cast<const Region&>(common));
    }
  }

 private:
  std::size_t rank_;
  std::size_t sort_dim_ = 0;      // the first dim along which pieces differ
  std::vector<Interval> bounds_;  // rank_ per piece
  std::vector<std::uint32_t> owners_;
  std::vector<std::int64_t> offsets_;
  std::vector<std::int64_t> reach_;  // largest end along sort_dim_ among pieces [0, i]
};

}  // namespace tessera

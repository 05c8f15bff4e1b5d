#include "lib/layout/tiling.h"

#include <algorithm>
#include <vector>

namespace tessera {
namespace {

using Ids = std::span<std::uint32_t>;  // tiles that meet a cell; reordered in place

class Sweep {
 public:
  Sweep(const Box& region, std::span<const Tile> tiles)
      : rank_(region.rank()), tiles_(tiles), cell_(region) {
    // Enough for every real layout with room to spare: grids take about rank + 1 visits per tile
    // and level, brick patterns a few dozen.
    visits_left_ = allowance(256);
  }

  Tiling run() {
    std::vector<std::uint32_t> ids(tiles_.size());
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::uint32_t>(i);
    solve(ids);
    return std::move(result_);
  }

 private:
  std::int64_t allowance(std::int64_t visits_per_tile) const {
    return 1'000'000 + visits_per_tile * (rank_ + 1) * static_cast<std::int64_t>(tiles_.size());
  }
  std::int64_t begin(std::uint32_t id, int dim) const { return tiles_[id].box.begin(dim); }
  std::int64_t end(std::uint32_t id, int dim) const { return tiles_[id].box.end(dim); }
  bool spans_cell(std::uint32_t id, int dim) const {
    return begin(id, dim) <= cell_.begin(dim) && end(id, dim) >= cell_.end(dim);
  }
  bool covers_cell(std::uint32_t id) const {
    for (int d = 0; d < rank_; ++d)
      if (!spans_cell(id, d)) return false;
    return true;
  }

  bool spend(std::size_t visits) {
    visits_left_ -= static_cast<std::int64_t>(visits);
    if (visits_left_ < 0) result_.proved = false;
    return result_.proved;
  }

  /// Runs `f` with dim `dim` of the cell narrowed to [from, to).
  template <class F>
  void in_slab(int dim, std::int64_t from, std::int64_t to, F&& f) {
    const auto i = static_cast<std::size_t>(dim);
    const std::int64_t old_origin = std::exchange(cell_.origin[i], from);
    const std::int64_t old_extent = std::exchange(cell_.shape[dim], to - from);
    f();
    cell_.origin[i] = old_origin;
    cell_.shape[dim] = old_extent;
  }

  void report_hole() {
    result_.missing_numel += cell_.numel();
    if (!result_.first_hole || cell_.origin < result_.first_hole->origin)
      result_.first_hole = cell_;
  }

  void report_overlap(std::size_t a, std::size_t b) {
    const std::pair<std::size_t, std::size_t> pair = std::minmax(a, b);
    if (!result_.first_overlap || pair < *result_.first_overlap) result_.first_overlap = pair;
  }

  /// Every id meets the cell.
  void solve(Ids ids) {
    if (ids.empty()) return report_hole();
    if (!spend(ids.size())) return;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (!covers_cell(ids[i])) continue;
      if (ids.size() > 1) report_overlap(tiles_[ids[i]].chunk, tiles_[ids[i == 0 ? 1 : 0]].chunk);
      return;  // no hole here, and one overlap of this cell is reported
    }
    for (int d = 0; d < rank_; ++d)
      if (split_free(ids, d)) return;
    split_at_median(ids);
  }

  /// Cuts the cell along `dim` wherever no tile crosses; false when there is no such place.
  bool split_free(Ids ids, int dim) {
    if (std::ranges::all_of(ids, [&](std::uint32_t id) { return spans_cell(id, dim); }))
      return false;
    if (!spend(ids.size())) return true;
    std::ranges::sort(ids, {}, [&](std::uint32_t id) { return begin(id, dim); });
    const std::int64_t cell_begin = cell_.begin(dim);
    const std::int64_t cell_end = cell_.end(dim);
    const auto cluster_from = [&](std::size_t first) {
      std::int64_t reach = end(ids[first], dim);
      std::size_t last = first + 1;
      for (; last < ids.size() && begin(ids[last], dim) < reach; ++last)
        reach = std::max(reach, end(ids[last], dim));
      return std::pair(last, std::min(reach, cell_end));
    };
    const auto [first_last, first_reach] = cluster_from(0);
    const bool from_start = begin(ids[0], dim) <= cell_begin;
    if (from_start && first_last == ids.size() && first_reach == cell_end) return false;
    std::int64_t at = cell_begin;
    for (std::size_t first = 0; first < ids.size() && result_.proved;) {
      const auto [last, reach] = cluster_from(first);
      const std::int64_t from = std::max(begin(ids[first], dim), cell_begin);
      if (from > at) in_slab(dim, at, from, [&] { report_hole(); });
      in_slab(dim, from, reach, [&] { solve(ids.subspan(first, last - first)); });
      at = reach;
      first = last;
    }
    if (at < cell_end && result_.proved) in_slab(dim, at, cell_end, [&] { report_hole(); });
    return true;
  }

  /// The median of the tile borders strictly inside the cell, or the cell's begin when there is
  /// none.
  std::int64_t median_border(Ids ids, int dim) {
    borders_.clear();
    for (const std::uint32_t id : ids) {
      for (const std::int64_t border : {begin(id, dim), end(id, dim)})
        if (border > cell_.begin(dim) && border < cell_.end(dim)) borders_.push_back(border);
    }
    if (borders_.empty()) return cell_.begin(dim);
    const auto middle = borders_.begin() + static_cast<std::ptrdiff_t>(borders_.size() / 2);
    std::nth_element(borders_.begin(), middle, borders_.end());
    return *middle;
  }

  void split_at_median(Ids ids) {
    int best_dim = -1;
    std::int64_t best_cut = 0;
    std::size_t best_crossed = 0;
    for (int d = 0; d < rank_; ++d) {
      if (!spend(ids.size())) return;
      const std::int64_t cut = median_border(ids, d);
      if (cut == cell_.begin(d)) continue;
      const auto crossed = static_cast<std::size_t>(std::ranges::count_if(
          ids, [&](std::uint32_t id) { return begin(id, d) < cut && end(id, d) > cut; }));
      if (best_dim >= 0 && crossed >= best_crossed) continue;
      best_dim = d;
      best_cut = cut;
      best_crossed = crossed;
    }
    // A tile that does not cover the cell has a border inside it.
    std::vector<std::uint32_t> below;
    std::vector<std::uint32_t> above;
    for (const std::uint32_t id : ids) {
      if (begin(id, best_dim) < best_cut) below.push_back(id);
      if (end(id, best_dim) > best_cut) above.push_back(id);
    }
    in_slab(best_dim, cell_.begin(best_dim), best_cut, [&] { solve(below); });
    in_slab(best_dim, best_cut, cell_.end(best_dim), [&] { solve(above); });
  }

  int rank_;
  std::span<const Tile> tiles_;
  Box cell_;
  std::int64_t visits_left_ = 0;
  std::vector<std::int64_t> borders_;
  Tiling result_;
};

}  // namespace

Tiling check_tiling(const Box& region, std::span<const Tile> tiles) {
  return Sweep(region, tiles).run();
}

}  // namespace tessera

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/layout/coverage.h>

#include <algorithm>
#include <compare>
#include <limits>
#include <numeric>

#include "lib/layout/tiling.h"

namespace tessera {
namespace {

std::strong_ordering compare(const Box& a, const Box& b) {
  const auto order = std::lexicographical_compare_three_way(a.origin.begin(), a.origin.end(),
                                                            b.origin.begin(), b.origin.end());
  if (order != 0) return order;
  const auto x = a.shape.extents(), y = b.shape.extents();
  return std::lexicographical_compare_three_way(x.begin(), x.end(), y.begin(), y.end());
}

/// Groups of equal chunks. A range that is one box counts as that box.
class Groups {
 public:
  explicit Groups(ChunkSlice chunks, const std::vector<std::size_t>& usable) {
    std::vector<std::vector<ChunkPiece>> pieces(usable.size());
    for (std::size_t i = 0; i < usable.size(); ++i)
      pieces[i] = decompose(chunks[usable[i]].chunk());
    std::vector<std::size_t> order(usable.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::sort(order, [&](std::size_t a, std::size_t b) {
      const auto sign = compare(pieces[a], pieces[b]);
      return sign != 0 ? sign < 0 : a < b;
    });
    for (std::size_t i = 0; i < order.size();) {
      std::size_t end = i + 1;
      while (end < order.size() && compare(pieces[order[i]], pieces[order[end]]) == 0) ++end;
      replicas_ = std::min(replicas_, static_cast<std::int64_t>(end - i));
      for (ChunkPiece& piece : pieces[order[i]])
        tiles_.push_back({std::move(piece.box), usable[order[i]]});
      i = end;
    }
  }

  const std::vector<Tile>& tiles() const { return tiles_; }
  std::int64_t replicas() const { return tiles_.empty() ? 1 : replicas_; }

 private:
  static std::strong_ordering compare(const std::vector<ChunkPiece>& a,
                                      const std::vector<ChunkPiece>& b) {
    for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i)
      if (const auto order = tessera::compare(a[i].box, b[i].box); order != 0) return order;
    return a.size() <=> b.size();
  }

  std::vector<Tile> tiles_;
  std::int64_t replicas_ = std::numeric_limits<std::int64_t>::max();
};

std::string hole_text(const Box& hole) {
  if (hole.rank() == 0) return "the scalar is in no chunk";
  if (hole.rank() == 1)
    return fmt::format("elements [{}:{}) are in no chunk", hole.begin(0), hole.end(0));
  return fmt::format("region {} is in no chunk", hole.to_string());
}

bool is_whole_dim(const Shape& shape, const ChunkView& box, int dim) {
  return box.begin(dim) == 0 && box.extent(dim) == shape[dim];
}

bool is_whole(const Shape& shape, const ChunkView& chunk) {
  for (int d = 0; d < shape.rank(); ++d)
    if (!is_whole_dim(shape, chunk, d)) return false;
  return chunk.is_whole_box();
}

/// The dim along which a slice is cut; -1: none, so that it is the whole; -2: several.
int cut_dim(const Shape& shape, const ChunkView& box) {
  int cut = -1;
  for (int d = 0; d < shape.rank(); ++d) {
    if (is_whole_dim(shape, box, d)) continue;
    if (cut != -1) return -2;
    cut = d;
  }
  return cut;
}

/// Whole slices along one dim, each once: nearly all checkpoints are cut so, some into millions of
/// chunks. True proves that they tile the tensor; false leaves it open.
bool are_slices(const Shape& shape, ChunkSlice chunks, const std::vector<std::size_t>& usable) {
  struct Range {
    std::int64_t begin, end;
    bool operator<(const Range& other) const { return begin < other.begin; }
  };
  std::vector<Range> ranges;
  ranges.reserve(usable.size());
  int dim = -1;
  for (const std::size_t i : usable) {
    const ChunkView chunk = chunks[i];
    if (!chunk.is_whole_box()) return false;
    const int cut = cut_dim(shape, chunk);
    if (cut < 0 || (dim >= 0 && cut != dim)) return false;
    dim = cut;
    ranges.push_back({chunk.begin(dim), chunk.end(dim)});
  }
  if (!std::ranges::is_sorted(ranges, std::less<>())) std::ranges::sort(ranges, std::less<>());
  std::int64_t reached = 0;
  for (const Range& range : ranges) {
    if (range.begin != reached) return false;
    reached = range.end;
  }
  return dim >= 0 && reached == shape[dim];
}

}  // namespace

std::string CoverageReport::to_string() const {
  if (complete) return fmt::format("complete, {} {}", replicas, replicas == 1 ? "copy" : "copies");
  std::string text;
  const auto add = [&text](const std::string& part) { text += (text.empty() ? "" : "; ") + part; };
  if (!out_of_bounds.empty())
    add(fmt::format("chunk {} lies outside the tensor", out_of_bounds.front()));
  if (first_overlap)
    add(fmt::format("chunks {} and {} overlap", first_overlap->first, first_overlap->second));
  if (first_hole)
    add(fmt::format("{} ({}{} missing)", hole_text(*first_hole), exact ? "" : "at least ",
                    missing_numel));
  if (!exact && !first_overlap && !first_hole)
    add("the chunks are too irregular to prove that they cover the tensor");
  return text;
}

CoverageReport check_coverage(const Shape& shape, std::span<const Chunk> chunks) {
  PackedChunks packed;
  for (const Chunk& chunk : chunks) packed.push_back(chunk);
  return check_coverage(shape, packed);
}

CoverageReport check_coverage(const Shape& shape, ChunkSlice chunks) {
  CoverageReport report;
  std::vector<std::size_t> usable;
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    if (!chunks[i].lies_in(shape)) {
      report.out_of_bounds.push_back(i);
    } else if (chunks[i].numel() > 0) {
      usable.push_back(i);
    }
  }
  report.complete = report.out_of_bounds.empty();
  if (shape.numel() == 0) return report;
  if (usable.size() == 1 && is_whole(shape, chunks[usable[0]])) return report;
  if (are_slices(shape, chunks, usable)) return report;
  const Groups groups(chunks, usable);
  const Tiling tiling = check_tiling(Box::whole(shape), groups.tiles());
  report.missing_numel = tiling.missing_numel;
  report.first_hole = tiling.first_hole;
  report.first_overlap = tiling.first_overlap;
  report.exact = tiling.proved;
  report.complete = report.complete && tiling.proved && !tiling.first_hole && !tiling.first_overlap;
  report.replicas = tiling.first_hole || !tiling.proved ? 0 : groups.replicas();
  return report;
}

}  // namespace tessera

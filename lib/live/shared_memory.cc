#include "lib/live/shared_memory.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

namespace tessera {

namespace {

constexpr std::size_t kMostRuns = std::size_t{1} << 24;

/// Bytes [begin, end) of piece number `piece`.
struct Run {
  std::uintptr_t begin = 0, end = 0;
  std::size_t piece = 0;
};

/// Strides and extents of the dims that matter, the innermost last.
struct Layout {
  std::vector<std::int64_t> strides, extents;
  std::int64_t run = 1;  // elements that follow each other
};

Layout layout_of(const LivePiece& piece) {
  Layout layout;
  if (piece.strides.empty()) {
    layout.run = piece.chunk.numel();
    return layout;
  }
  std::vector<std::pair<std::int64_t, std::int64_t>> dims;
  for (int d = 0; d < piece.chunk.box.rank(); ++d)
    if (piece.chunk.box.shape[d] > 1)
      dims.emplace_back(piece.strides[static_cast<std::size_t>(d)], piece.chunk.box.shape[d]);
  std::ranges::sort(dims);
  for (const auto& [stride, extent] : dims) {
    if (layout.strides.empty() && stride == layout.run) {
      layout.run *= extent;
      continue;
    }
    layout.strides.push_back(stride);
    layout.extents.push_back(extent);
  }
  return layout;
}

std::uintptr_t run_bytes(std::int64_t elements, DType dtype) {
  return (static_cast<std::uintptr_t>(elements) * static_cast<std::uintptr_t>(bits(dtype)) + 7) / 8;
}

Run bounds_of(const NamedPiece& named, std::size_t number) {
  const Layout layout = layout_of(*named.piece);
  std::int64_t last = layout.run;
  for (std::size_t d = 0; d < layout.strides.size(); ++d)
    last += layout.strides[d] * (layout.extents[d] - 1);
  const auto begin = reinterpret_cast<std::uintptr_t>(named.piece->data);
  return {begin, begin + run_bytes(last, named.dtype), number};
}

/// False where there would be too many.
bool append_runs(const NamedPiece& named, std::size_t number, std::vector<Run>& runs) {
  const Layout layout = layout_of(*named.piece);
  std::size_t count = 1;
  for (const std::int64_t extent : layout.extents) {
    if (static_cast<std::size_t>(extent) > kMostRuns / count) return false;
    count *= static_cast<std::size_t>(extent);
  }
  if (runs.size() + count > kMostRuns) return false;
  const auto begin = reinterpret_cast<std::uintptr_t>(named.piece->data);
  std::vector<std::int64_t> at(layout.extents.size());
  for (std::size_t i = 0; i < count; ++i) {
    const std::int64_t element =
        std::inner_product(at.begin(), at.end(), layout.strides.begin(), std::int64_t{0});
    const std::uintptr_t first = begin + run_bytes(element, named.dtype);
    runs.push_back({first, first + run_bytes(layout.run, named.dtype), number});
    for (std::size_t d = 0; d < at.size() && ++at[d] == layout.extents[d]; ++d) at[d] = 0;
  }
  return true;
}

/// The first two of different pieces that overlap.
std::optional<std::pair<std::size_t, std::size_t>> overlap(std::vector<Run>& runs) {
  std::ranges::sort(runs, {}, &Run::begin);
  for (std::size_t i = 1, widest = 0; i < runs.size(); ++i) {
    if (runs[i].begin < runs[widest].end && runs[i].piece != runs[widest].piece)
      return std::pair(runs[widest].piece, runs[i].piece);
    if (runs[i].end > runs[widest].end) widest = i;
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::pair<std::string, std::string>> first_shared(
    std::span<const NamedPiece> pieces) {
  std::vector<Run> bounds;
  for (std::size_t i = 0; i < pieces.size(); ++i) bounds.push_back(bounds_of(pieces[i], i));
  std::ranges::sort(bounds, {}, &Run::begin);
  std::vector<Run> runs;
  // Pieces whose bounds overlap, one after the other, are looked at closely.
  for (std::size_t first = 0, next; first < bounds.size(); first = next) {
    std::uintptr_t end = bounds[first].end;
    for (next = first + 1; next < bounds.size() && bounds[next].begin < end; ++next)
      end = std::max(end, bounds[next].end);
    if (next - first < 2) continue;
    runs.clear();
    bool all = true;
    for (std::size_t i = first; i < next && all; ++i)
      all = append_runs(pieces[bounds[i].piece], bounds[i].piece, runs);
    if (!all) continue;
    if (const auto shared = overlap(runs)) {
      const auto [a, b] = std::minmax(shared->first, shared->second);
      return std::pair(pieces[a].name, pieces[b].name);
    }
  }
  return std::nullopt;
}

}  // namespace tessera

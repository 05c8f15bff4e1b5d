#include <fmt/format.h>
#include <tessera/base/checked.h>
#include <tessera/base/error.h>
#include <tessera/layout/layout.h>

#include <algorithm>

// Each dim keeps the rows a rank still holds, as runs in local order; every placement cuts that
// sequence by its position, not by row number. This is what PyTorch's index lists do, at a run
// instead of a row.
namespace tessera {
namespace {

using Rows = std::vector<RowRange>;  // non-empty runs, in local order

std::int64_t count(const Rows& rows) {
  std::int64_t total = 0;
  for (const RowRange& run : rows) total += run.end - run.begin;
  return total;
}

void append(Rows& rows, RowRange run) {
  if (run.begin == run.end) return;
  if (!rows.empty() && rows.back().end == run.begin) {
    rows.back().end = run.end;
  } else {
    rows.push_back(run);
  }
}

/// Appends positions [cut.begin, cut.end) of the sequence `rows` to `out`.
void append_slice(Rows& out, const Rows& rows, RowRange cut) {
  std::int64_t position = 0;
  for (const RowRange& run : rows) {
    const std::int64_t length = run.end - run.begin;
    const std::int64_t from = std::clamp<std::int64_t>(cut.begin - position, 0, length);
    const std::int64_t to = std::clamp<std::int64_t>(cut.end - position, from, length);
    append(out, {run.begin + from, run.begin + to});
    position += length;
    if (position >= cut.end) return;
  }
}

Rows shard(const Rows& rows, std::int64_t parts, std::int64_t index) {
  Rows out;
  append_slice(out, rows, chunk_rows(count(rows), parts, index));
  return out;
}

/// Part `index` of each of `factor` slices, one after the other.
Rows strided_shard(const Rows& rows, std::int64_t factor, std::int64_t parts, std::int64_t index) {
  Rows out;
  const std::int64_t total = count(rows);
  for (std::int64_t slice = 0; slice < factor; ++slice) {
    const RowRange outer = chunk_rows(total, factor, slice);
    if (outer.begin == outer.end) break;  // so are all later ones
    const RowRange inner = chunk_rows(outer.end - outer.begin, parts, index);
    append_slice(out, rows, {outer.begin + inner.begin, outer.begin + inner.end});
  }
  return out;
}

/// Ways that later mesh dims split the tensor dim of placement `at`.
std::int64_t later_ways(const Mesh& mesh, const std::vector<Placement>& placements,
                        std::size_t at) {
  std::int64_t ways = 1;
  for (std::size_t d = at + 1; d < placements.size(); ++d) {
    const auto kind = placements[d].kind;
    const bool splits = kind == Placement::Kind::kShard || kind == Placement::Kind::kStridedShard;
    if (splits && placements[d].dim == placements[at].dim) ways *= mesh.dims()[d].size;
  }
  return ways;
}

/// The boxes of all combinations of runs, first dim slowest. A dim without rows gives one empty box
/// at the end of the dim.
std::vector<Chunk> boxes_of(const std::vector<Rows>& held, const Shape& shape) {
  Box first = Box::whole(shape);
  std::vector<Box> boxes = {first};
  for (int d = 0; d < shape.rank(); ++d) {
    const auto i = static_cast<std::size_t>(d);
    Rows runs = held[i];
    if (runs.empty()) runs.push_back({shape[d], shape[d]});
    std::vector<Box> next;
    next.reserve(boxes.size() * runs.size());
    for (const Box& box : boxes) {
      for (const RowRange& run : runs) {
        next.push_back(box);
        next.back().origin[i] = run.begin;
        next.back().shape[d] = run.end - run.begin;
      }
    }
    boxes = std::move(next);
  }
  std::vector<Chunk> chunks;
  chunks.reserve(boxes.size());
  for (Box& box : boxes) chunks.push_back(Chunk::whole_of(std::move(box)));
  return chunks;
}

/// Positions `cut` of the concatenated ravels of `chunks`; one empty chunk when nothing is left.
std::vector<Chunk> slice_ravel(const std::vector<Chunk>& chunks, RowRange cut) {
  std::vector<Chunk> out;
  std::int64_t position = 0;
  for (const Chunk& chunk : chunks) {
    const std::int64_t numel = chunk.numel();
    const std::int64_t from = std::clamp<std::int64_t>(cut.begin - position, 0, numel);
    const std::int64_t to = std::clamp<std::int64_t>(cut.end - position, from, numel);
    if (from < to) out.push_back({chunk.box, chunk.flat_begin + from, chunk.flat_begin + to});
    position += numel;
  }
  if (out.empty() && !chunks.empty())
    out.push_back({chunks.back().box, chunks.back().flat_end, chunks.back().flat_end});
  return out;
}

}  // namespace

RowRange chunk_rows(std::int64_t extent, std::int64_t parts, std::int64_t index) {
  TESSERA_CHECK(extent >= 0 && parts >= 1 && index >= 0 && index < parts);
  const std::int64_t rows = ceil_div(extent, parts);
  // index * rows may overflow only where it is past the end anyway.
  const std::int64_t begin = std::min(extent, checked_mul(index, rows).value_or(extent));
  return {begin, begin + std::min(rows, extent - begin)};
}

Box chunk_box(const Shape& shape, int dim, std::int64_t parts, std::int64_t index) {
  TESSERA_CHECK(0 <= dim && dim < shape.rank());
  const RowRange rows = chunk_rows(shape[dim], parts, index);
  Box box = Box::whole(shape);
  box.origin[static_cast<std::size_t>(dim)] = rows.begin;
  box.shape[dim] = rows.end - rows.begin;
  return box;
}

Layout::Layout(Mesh mesh, std::vector<Placement> placements)
    : mesh_(std::move(mesh)), placements_(std::move(placements)) {
  if (placements_.size() != mesh_.dims().size())
    fail(Code::kInvalidArgument,
         fmt::format("{} placements for mesh \"{}\" of {} dims; give one for each",
                     placements_.size(), mesh_.to_string(), mesh_.rank()));
  bool flat = false;
  for (std::size_t d = 0; d < placements_.size(); ++d) {
    const Placement& placement = placements_[d];
    const auto kind = placement.kind;
    if (kind == Placement::Kind::kPartial)
      fail(Code::kInvalidArgument, "a partial placement is never stored; reduce the tensor first");
    if (kind == Placement::Kind::kStridedShard) {
      const std::int64_t ways = later_ways(mesh_, placements_, d);
      if (placement.split_factor != ways)
        fail(Code::kUnsupported,
             fmt::format("{} on mesh dim {}: the factor must be {}, the ways in which later mesh "
                         "dims split dim {}",
                         placement.to_string(), mesh_.dims()[d].name, ways, placement.dim));
    }
    if (flat && (kind == Placement::Kind::kShard || kind == Placement::Kind::kStridedShard))
      fail(Code::kUnsupported,
           fmt::format("{} after flat: a flat slice has no dims to split", placement.to_string()));
    flat |= kind == Placement::Kind::kFlat;
  }
}

std::vector<Chunk> Layout::chunks_of(std::int64_t global_rank, const Shape& shape) const {
  const std::vector<std::int64_t> coordinate = mesh_.coordinate(global_rank);
  std::vector<Rows> held(static_cast<std::size_t>(shape.rank()));
  for (std::size_t d = 0; d < held.size(); ++d) append(held[d], {0, shape[static_cast<int>(d)]});
  for (std::size_t d = 0; d < placements_.size(); ++d) {
    const Placement& placement = placements_[d];
    const bool strided = placement.kind == Placement::Kind::kStridedShard;
    if (placement.kind != Placement::Kind::kShard && !strided) continue;
    if (placement.dim < 0 || placement.dim >= shape.rank())
      fail(Code::kInvalidArgument, fmt::format("{} of a tensor of shape {}: it has no such dim",
                                               placement.to_string(), shape.to_string()));
    Rows& rows = held[static_cast<std::size_t>(placement.dim)];
    const std::int64_t parts = mesh_.dims()[d].size;
    rows = strided ? strided_shard(rows, placement.split_factor, parts, coordinate[d])
                   : shard(rows, parts, coordinate[d]);
  }
  std::vector<Chunk> chunks = boxes_of(held, shape);
  for (std::size_t d = 0; d < placements_.size(); ++d) {
    if (placements_[d].kind != Placement::Kind::kFlat) continue;
    std::int64_t numel = 0;
    for (const Chunk& chunk : chunks) numel += chunk.numel();
    chunks = slice_ravel(chunks, chunk_rows(numel, mesh_.dims()[d].size, coordinate[d]));
  }
  return chunks;
}

bool Layout::is_owner(std::int64_t global_rank) const {
  const std::vector<std::int64_t> coordinate = mesh_.coordinate(global_rank);
  for (std::size_t d = 0; d < placements_.size(); ++d)
    if (placements_[d].kind == Placement::Kind::kReplicate && coordinate[d] != 0) return false;
  return true;
}

}  // namespace tessera

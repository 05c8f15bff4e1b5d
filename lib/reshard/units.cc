#include "lib/reshard/units.h"

#include <tessera/base/error.h>
#include <tessera/reshard/memory_limit.h>
#include <tessera/storage/file_system.h>

#include <algorithm>

namespace tessera {

namespace {

constexpr std::uint64_t kLeastBlockBytes = std::uint64_t{16} << 10;
constexpr std::uint64_t kMostSlabBytes = std::uint64_t{64} << 20;
constexpr std::uint64_t kLeastShareBytes = kLeastMemoryLimitBytes;  // a thread's
constexpr std::size_t kMostSlabsPerBatch = 4096;
constexpr std::size_t kRecentGeometries = 16;

/// The larger of an element's sizes as it is read and as it is written.
std::int64_t widest_bytes(const Geometry& geometry) {
  return std::max(geometry.element_bytes, geometry.stored_element_bytes);
}

/// Elements of a slab: what is staged is the slab once as read (once more if its bytes are changed)
/// and once per time it is written.
std::int64_t slab_numel(const Manifest& source, const OutputPlan& output, const Plan& plan,
                        std::uint32_t entry, const Geometry& geometry, const Budget& budget) {
  std::uint64_t written = 0;
  for (std::uint64_t s : plan.segments(entry)) written += output.segments[s].length;
  auto size = static_cast<std::uint64_t>(geometry.numel()) *
              static_cast<std::uint64_t>(geometry.element_bytes);
  std::uint64_t copies = 1 + (written + size - 1) / std::max<std::uint64_t>(size, 1);
  for (const SourceChunk& chunk : geometry.source_chunks) {
    if (source.chunks.source(chunk.chunk).flags != 0) {
      ++copies;
      break;
    }
  }
  std::uint64_t most = budget.share_bytes / copies;
  std::uint64_t wanted = budget.block_bytes;
  if (geometry.has_strided) {
    wanted = kMostSlabBytes;
  } else if (geometry.shape.size() > 1) {  // several blocks side by side: each should still be long
    std::uint64_t side_by_side = std::max(geometry.sources.size(), geometry.targets.size());
    wanted =
        std::min(kMostSlabBytes, budget.block_bytes / 2 * std::max<std::uint64_t>(2, side_by_side));
  }
  std::uint64_t bytes = std::max(std::min(wanted, most), kLeastBlockBytes);
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(bytes) / widest_bytes(geometry));
}

/// Where to end a slab of a one-dimensional tensor that begins at `begin` and may reach `limit`: at
/// the end of a segment if one ends in the second half, else where the file offset is a multiple of
/// the I/O alignment.
std::int64_t cut_before(const Geometry& geometry, const OutputPlan& output,
                        std::span<const std::uint64_t> segments, std::int64_t begin,
                        std::int64_t limit) {
  std::int64_t cut = limit;
  std::int64_t half = begin + (limit - begin) / 2;
  std::int64_t best_end = 0;
  geometry.targets.query(Region{{half, limit + 1}}, [&](std::size_t i, const Region&) {
    Interval piece = geometry.targets.region(i)[0];
    if (piece.end > half && piece.end <= limit) best_end = std::max(best_end, piece.end);
    if (piece.begin > half && piece.begin <= limit) best_end = std::max(best_end, piece.begin);
    if (piece.begin >= limit || piece.end <= limit) return;
    const Segment& segment = output.segments[segments[geometry.targets.owner(i)]];
    std::uint64_t at = file_offset_of(geometry, i, Region{{limit, piece.end}}, segment);
    auto past = static_cast<std::int64_t>(at % kIoAlignment);
    if (past % geometry.element_bytes == 0) {
      std::int64_t aligned = limit - past / geometry.element_bytes;
      if (aligned > std::max(half, piece.begin)) cut = aligned;
    }
  });
  return best_end > begin ? best_end : cut;
}

void cut_tensor(const OutputPlan& output, const Plan& plan, std::uint32_t entry,
                const Geometry& geometry, std::int64_t most_numel, std::vector<Slab>& slabs) {
  auto keep = [&](const Region& region) {
    bool wanted = false;
    geometry.targets.query(region, [&](std::size_t, const Region&) { wanted = true; });
    if (wanted) slabs.push_back({entry, region});
  };
  if (geometry.shape.size() == 1 && !geometry.has_strided) {
    std::int64_t numel = geometry.numel();
    for (std::int64_t at = 0; at < numel;) {
      std::int64_t end = numel;
      if (numel - at > most_numel) {
        end = cut_before(geometry, output, plan.segments(entry), at, at + most_numel);
      }
      keep(Region{{at, end}});
      at = end;
    }
    return;
  }
  RegionCursor cursor(geometry.whole(), most_numel);
  Region region;
  while (cursor.next(region)) keep(region);
}

}  // namespace

Budget Budget::make(std::uint64_t memory_limit_bytes, int threads, std::uint64_t block_bytes) {
  Budget budget;
  auto most =
      static_cast<int>(std::clamp<std::uint64_t>(memory_limit_bytes / kLeastShareBytes, 1, 1024));
  budget.threads = std::clamp(threads, 1, most);
  std::uint64_t share = memory_limit_bytes / static_cast<std::uint64_t>(budget.threads);
  // Blocks lie at any offset: each may need a page more than it holds.
  std::uint64_t slack = std::min(share / 8, std::uint64_t{64} << 10);
  budget.share_bytes = std::max(share - slack, kLeastBlockBytes * 2);
  budget.block_bytes =
      std::clamp(budget.share_bytes / 4, kLeastBlockBytes, std::max(block_bytes, kLeastBlockBytes));
  budget.span_bytes = std::max(budget.share_bytes / 3, kLeastBlockBytes);
  return budget;
}

std::shared_ptr<const Geometry> GeometryCache::get(std::uint32_t entry) {
  {
    std::lock_guard lock(mutex_);
    for (const auto& [number, geometry] : recent_) {
      if (number == entry) return geometry;
    }
  }
  std::vector<Chunk> targets;
  for (std::uint64_t s : plan_.segments(entry)) {
    targets.push_back(output_.chunks[output_.segments[s].payload].chunk());
  }
  auto made = std::make_shared<const Geometry>(
      make_geometry(source_, plan_.tensor(entry), plan_.sources(entry), targets));
  std::lock_guard lock(mutex_);
  recent_.emplace_front(entry, made);
  if (recent_.size() > kRecentGeometries) recent_.pop_back();
  return made;
}

std::uint64_t file_offset_of(const Geometry& geometry, std::size_t piece, const Region& common,
                             const Segment& segment) {
  std::int64_t element =
      geometry.targets.chunk_offset(piece) + offset_inside(geometry.targets.region(piece), common);
  return segment.offset +
         static_cast<std::uint64_t>(element) * static_cast<std::uint64_t>(geometry.element_bytes);
}

std::vector<Unit> make_units(const Manifest& source, const OutputPlan& output, const Plan& plan,
                             GeometryCache& geometries, const Budget& budget) {
  std::vector<Unit> units;
  Unit batch;
  std::uint64_t batch_bytes = 0;
  auto flush = [&] {
    if (!batch.slabs.empty()) units.push_back(std::move(batch));
    batch = {};
    batch_bytes = 0;
  };
  for (std::uint32_t entry = 0; entry < plan.tensor_count(); ++entry) {
    std::shared_ptr<const Geometry> geometry = geometries.get(entry);
    std::int64_t most = slab_numel(source, output, plan, entry, *geometry, budget);
    std::vector<Slab> slabs;
    cut_tensor(output, plan, entry, *geometry, most, slabs);
    std::uint64_t written = 0;
    for (std::uint64_t s : plan.segments(entry)) written += output.segments[s].length;
    written = std::max(
        written, static_cast<std::uint64_t>(geometry->numel() * geometry->stored_element_bytes));
    bool small = slabs.size() == 1 && !geometry->has_strided && !geometry->has_coded &&
                 written <= budget.block_bytes / 4;
    if (small) {
      if (batch_bytes + written > budget.block_bytes || batch.slabs.size() == kMostSlabsPerBatch) {
        flush();
      }
      batch_bytes += written;
      batch.slabs.push_back(std::move(slabs[0]));
      continue;
    }
    flush();
    if (geometry->has_coded) {
      units.push_back({std::move(slabs), true});
      continue;
    }
    for (Slab& slab : slabs) {
      Unit unit;
      unit.slabs.push_back(std::move(slab));
      units.push_back(std::move(unit));
    }
  }
  flush();
  return units;
}

}  // namespace tessera

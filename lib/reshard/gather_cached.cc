// What lies in the page cache needs no large requests: runs are read straight into their places, in
// slices that are still in the second-level cache of the CPU when they are summed.
#include <tessera/storage/cache_probe.h>
#include <tessera/storage/checksum.h>

#include <algorithm>

#include "lib/reshard/gather_need.h"

namespace tessera {

namespace {

constexpr std::uint64_t kSliceBytes = std::uint64_t{256} << 10;
constexpr std::uint64_t kLeastRunBytes = std::uint64_t{64} << 10;
constexpr std::uint64_t kMostCachedBytes = std::uint64_t{1} << 20;  // small ones, read together
constexpr std::size_t kMostProbes = 64;                             // each may open a file

}  // namespace

bool Gather::is_cached(const Need& need) const {
  return is_cached(need.source->file, need.offset, need.length);
}

bool Gather::is_cached(std::uint32_t file, std::uint64_t offset, std::uint64_t length) const {
  const std::shared_ptr<const ReadFile> handle = files_.get(file);
  const auto* probe = dynamic_cast<const CacheProbe*>(handle.get());
  return probe != nullptr && offset + length <= handle->size_bytes() &&
         probe->lies_in_cache(offset, length);
}

bool Gather::lies_in_cache(const Geometry& geometry) const {
  if (geometry.source_chunks.size() > kMostProbes) return false;
  return std::ranges::all_of(geometry.source_chunks, [&](const SourceChunk& chunk) {
    const Source& source = manifest_.chunks.source(chunk.chunk);
    return source.kind == Source::Kind::kExtent &&
           is_cached(source.file, source.offset, source.length);
  });
}

/// Requests to a device are as large as a block; a copy out of the page cache is best while the
/// CPU's caches hold it.
std::uint64_t Gather::most_at_once(const Need& first) const {
  return is_cached(first) ? std::min(kMostCachedBytes, options_.block_bytes) : options_.block_bytes;
}

bool Gather::goes_straight(const CopyTask& task, const Need& need, CachedRun& run) const {
  const StoredTensor& tensor = manifest_.tensors[task.tensor];
  if (need.length < kLeastRunBytes || need.strides != nullptr) return false;
  if (!options_.place) return true;
  if (need.source->flags != 0 || tensor.stored_dtype() != tensor.spec.dtype) return false;
  Region common;
  for (std::uint32_t i = 0; i < task.targets.size(); ++i) {
    const TargetSpan& target = task.targets[i];
    if (!intersect_regions(need.common, target.box, common)) continue;
    if (run.target != nullptr || common != need.common || !is_run(target.box, common)) return false;
    run = {&target, i,
           static_cast<std::uint64_t>(offset_inside(target.box, common) *
                                      task.geometry->element_bytes)};
  }
  return run.target != nullptr;
}

void Gather::read_cached_run(const CachedRun& run, const Need& need, Worker& worker,
                             std::vector<Fragment>* fragments) const {
  const std::shared_ptr<const ReadFile> file = files_.get(need.source->file);
  const bool proves = prover_ != nullptr && prover_->wants(need.chunk);
  const bool places = run.target != nullptr;
  const bool sums = places && run.target->want_crc && fragments != nullptr;
  const std::uint64_t in_output = sums ? run.target->file_offset + run.begin : 0;  // its first byte
  std::byte* proved = places ? nullptr : worker.read.need(std::min(kSliceBytes, need.length));
  std::uint64_t part = 0;  // where `crc` begins
  std::uint32_t crc = 0;
  for (std::uint64_t at = 0; at < need.length;) {
    std::uint64_t length = std::min(kSliceBytes, need.length - at);
    if (sums) length = std::min(length, kMiB - (in_output + at) % kMiB);
    const MutableBytes slice(places ? run.target->data + run.begin + at : proved,
                             static_cast<std::size_t>(length));
    file->read_at(need.offset + at, slice);
    if (sums || proves) crc = crc32(crc, slice);
    at += length;
    if (at < need.length && (!sums || (in_output + at) % kMiB != 0)) continue;
    if (sums) fragments->push_back({need.task, run.number, run.begin + part, at - part, crc});
    if (proves) prover_->add(need.chunk, need.offset + part, at - part, crc);
    part = at;
    crc = 0;
  }
  worker.bytes_read += need.length;
}

}  // namespace tessera

#include "lib/reshard/gather.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/storage/checksum.h>

#include <algorithm>
#include <tuple>

#include "lib/reshard/gather_need.h"

namespace tessera {

namespace {

std::uint64_t round_down(std::uint64_t n) { return n / kIoAlignment * kIoAlignment; }
std::uint64_t round_up(std::uint64_t n) { return round_down(n + kIoAlignment - 1); }

/// What the targets of a task want of each source piece: nothing else is read.
class Wanted {
 public:
  explicit Wanted(const CopyTask& task) : task_(task), found_(task.targets.size(), 0) {}

  /// Cuts `common` down to what some target wants; false when none does. A dense source is read as
  /// one run: only its outermost dim is cut.
  bool tighten(Region& common, bool strided) {
    bool any = false;
    Region part;
    for (std::size_t t = 0; t < task_.targets.size(); ++t) {
      if (!intersect_regions(common, task_.targets[t].box, part)) continue;
      found_[t] += region_numel(part);
      if (!any) hull_ = part;
      any = true;
      for (std::size_t d = 0; d < part.size(); ++d) {
        hull_[d].begin = std::min(hull_[d].begin, part[d].begin);
        hull_[d].end = std::max(hull_[d].end, part[d].end);
      }
    }
    if (!any) return false;
    std::size_t d = 0;
    while (!strided && d + 1 < common.size() && common[d].size() == 1) ++d;
    for (const std::size_t last = strided ? common.size() : d + 1; d < last; ++d)
      common[d] = hull_[d];
    return true;
  }

  void check_found() const {
    for (std::size_t t = 0; t < found_.size(); ++t) {
      if (found_[t] != region_numel(task_.targets[t].box))
        fail(Code::kCorrupt, "some of its elements are in no stored chunk");
    }
  }

 private:
  const CopyTask& task_;
  std::vector<std::int64_t> found_;
  Region hull_;
};

}  // namespace

void Gather::collect(const CopyTask& task, std::uint32_t number, std::vector<Need>& needs) const {
  const Geometry& geometry = *task.geometry;
  auto es = static_cast<std::uint64_t>(geometry.stored_element_bytes);
  Wanted wanted(task);
  geometry.sources.query(task.region, [&](std::size_t i, const Region& whole) {
    const SourceChunk& entry = geometry.source_chunks[geometry.sources.owner(i)];
    Region common = whole;
    if (!wanted.tighten(common, entry.strides != nullptr)) return;
    Need need;
    need.task = number;
    need.chunk = entry.chunk;
    need.source = &manifest_.chunks.source(entry.chunk);
    need.strides = entry.strides;
    need.common = common;
    std::int64_t numel = region_numel(common);
    RegionView piece = geometry.sources.region(i);
    need.base = entry.first_element;
    if (entry.strides != nullptr) {
      add_strided(task, piece, std::move(need), needs);
      return;
    }
    need.first_element =
        need.base + geometry.sources.chunk_offset(i) + offset_inside(piece, common);
    need.offset = need.source->offset + static_cast<std::uint64_t>(need.first_element) * es;
    need.length = static_cast<std::uint64_t>(numel) * es;
    check_extent(need);
    needs.push_back(std::move(need));
  });
  wanted.check_found();
}

void Gather::check_extent(const Need& need) {
  const Source& source = *need.source;
  if ((source.kind == Source::Kind::kExtent || source.kind == Source::Kind::kMemory) &&
      need.offset + need.length > source.offset + source.length) {
    fail(Code::kCorrupt,
         fmt::format("its elements reach past the {} bytes stored for them", source.length));
  }
}

/// Halves the region along its widest step until the span it touches fits one read.
void Gather::add_strided(const CopyTask& task, RegionView piece, Need need,
                         std::vector<Need>& needs) const {
  auto es = static_cast<std::uint64_t>(task.geometry->stored_element_bytes);
  const std::vector<std::int64_t>& strides = *need.strides;
  std::int64_t span = 1;
  std::size_t widest = 0;
  std::int64_t widest_step = -1;
  for (std::size_t d = 0; d < need.common.size(); ++d) {
    std::int64_t steps = need.common[d].size() - 1;
    span += steps * strides[d];
    if (steps > 0 && strides[d] > widest_step) {
      widest = d;
      widest_step = strides[d];
    }
  }
  need.first_element = need.base + dot_begin(piece, need.common, strides);
  need.offset = need.source->offset + static_cast<std::uint64_t>(need.first_element) * es;
  need.length = static_cast<std::uint64_t>(span) * es;
  if (need.length > options_.span_bytes && widest_step > 0) {
    std::int64_t middle = need.common[widest].begin + need.common[widest].size() / 2;
    Need upper = need;
    need.common[widest].end = middle;
    upper.common[widest].begin = middle;
    add_strided(task, piece, std::move(need), needs);
    add_strided(task, piece, std::move(upper), needs);
    return;
  }
  check_extent(need);
  needs.push_back(std::move(need));
}

void Gather::run(std::span<const CopyTask> tasks, Worker& worker,
                 std::vector<Fragment>* fragments) const {
  std::vector<Need> needs;
  for (std::uint32_t t = 0; t < tasks.size(); ++t) {
    in_tensor(manifest_.tensors[tasks[t].tensor].name, [&] { collect(tasks[t], t, needs); });
  }
  auto extents = std::stable_partition(needs.begin(), needs.end(), [](const Need& need) {
    return need.source->kind != Source::Kind::kExtent;
  });
  for (auto need = needs.begin(); need != extents; ++need) {
    in_tensor(manifest_.tensors[tasks[need->task].tensor].name,
              [&] { from_memory(tasks, *need, worker, fragments); });
  }
  std::stable_sort(extents, needs.end(), [](const Need& a, const Need& b) {
    return std::tie(a.source->file, a.offset) < std::tie(b.source->file, b.offset);
  });
  // Neighbours are read at once, but for what goes straight to its place.
  auto first = extents;
  std::uint64_t end = 0, most = 0;
  const auto read_up_to = [&](auto last) {
    if (options_.cancel != nullptr) options_.cancel->check();
    if (first != last) read_group(tasks, {first, last}, worker, fragments);
    first = last;
  };
  for (auto need = extents; need != needs.end(); ++need) {
    const auto named = [&](const auto& f) {
      return in_file(files_.path(need->source->file), [&] {
        return in_tensor(manifest_.tensors[tasks[need->task].tensor].name, f);
      });
    };
    CachedRun run;
    const bool straight = goes_straight(tasks[need->task], *need, run);
    if (straight && named([&] { return is_cached(*need); })) {
      read_up_to(need);
      named([&] { read_cached_run(run, *need, worker, fragments); });
      first = need + 1;
      continue;
    }
    const std::uint64_t longer = std::max(end, need->offset + need->length);
    const bool joins = first != need && need->source->file == first->source->file &&
                       need->offset <= end + options_.read_through_bytes &&
                       longer - first->offset <= most;
    if (joins) {
      end = longer;
      continue;
    }
    read_up_to(need);
    end = need->offset + need->length;
    // Of what would have gone straight it is known that it is not cached.
    most = straight ? options_.block_bytes : named([&] { return most_at_once(*need); });
  }
  read_up_to(needs.end());
}

void Gather::read(std::uint32_t file, std::uint64_t begin, std::uint64_t end, Worker& worker,
                  MeteredBuffer& into, const std::byte** data) const {
  std::shared_ptr<const ReadFile> handle = files_.get(file);
  if (end > handle->size_bytes()) {
    fail(Code::kCorrupt, fmt::format("the file ends at byte {}, its data should reach byte {}",
                                     handle->size_bytes(), end));
  }
  std::uint64_t from = begin;
  std::uint64_t to = end;
  if (io_mode_for(manifest_.files[file].size_bytes) == IoMode::kDirect) {
    from = round_down(begin);
    to = round_up(end);
  }
  std::byte* buffer = into.need(to - from);
  handle->read_at(from, {buffer, static_cast<std::size_t>(to - from)});
  worker.bytes_read += end - begin;
  *data = buffer + (begin - from);
}

void Gather::read_group(std::span<const CopyTask> tasks, std::span<Need> group, Worker& worker,
                        std::vector<Fragment>* fragments) const {
  std::uint32_t file = group.front().source->file;
  std::uint64_t begin = group.front().offset;
  std::uint64_t end = begin;
  for (const Need& need : group) end = std::max(end, need.offset + need.length);
  in_file(files_.path(file), [&] {
    const std::byte* data = nullptr;
    in_tensor(manifest_.tensors[tasks[group.front().task].tensor].name,
              [&] { read(file, begin, end, worker, worker.read, &data); });
    for (const Need& need : group) {
      in_tensor(manifest_.tensors[tasks[need.task].tensor].name, [&] {
        const std::byte* bytes = data + (need.offset - begin);
        bool prove = prover_ != nullptr && prover_->wants(need.chunk);
        bool whole = need.offset == need.source->offset && need.length == need.source->length;
        if (prove && need.strides != nullptr && !whole) prove = false;
        place(tasks[need.task], need, bytes, prove, worker, fragments);
      });
    }
    // Overlapping spans of a strided chunk cannot be folded: its record is read apart, once. After
    // the group, as it needs the same buffer.
    for (const Need& need : group) {
      bool whole = need.offset == need.source->offset && need.length == need.source->length;
      if (prover_ != nullptr && need.strides != nullptr && !whole && prover_->wants(need.chunk)) {
        in_tensor(manifest_.tensors[tasks[need.task].tensor].name,
                  [&] { prove_apart(need, worker); });
      }
    }
  });
}

void Gather::prove_apart(const Need& need, Worker& worker) const {
  if (!prover_->claim(need.chunk)) return;
  const Source& source = *need.source;
  std::uint32_t crc = 0;
  for (std::uint64_t at = 0; at < source.length;) {
    if (options_.cancel != nullptr) options_.cancel->check();
    std::uint64_t length = std::min(options_.block_bytes, source.length - at);
    const std::byte* data = nullptr;
    read(source.file, source.offset + at, source.offset + at + length, worker, worker.read, &data);
    crc = crc32(crc, {data, static_cast<std::size_t>(length)});
    at += length;
  }
  prover_->add(need.chunk, source.offset, source.length, crc);
}

}  // namespace tessera

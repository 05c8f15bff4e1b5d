#include "lib/reshard/gather.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/encoding/codec.h>
#include <tessera/storage/checksum.h>
#include <tessera/tensor/region_copy.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <tuple>

#include "lib/reshard/element_ops.h"

namespace tessera {

namespace {

constexpr std::uint64_t kReadThroughBytes = std::uint64_t{256} << 10;
constexpr std::int64_t kCastNumel = 2048;  // elements cast at once: both forms stay in the cache

std::uint64_t round_down(std::uint64_t n) { return n / kIoAlignment * kIoAlignment; }
std::uint64_t round_up(std::uint64_t n) { return round_down(n + kIoAlignment - 1); }

/// Is `inner` one run of the dense array `outer`?
bool is_run(RegionView outer, RegionView inner) {
  std::size_t d = 0;
  while (d < outer.size() && inner[d].size() == 1) ++d;
  for (++d; d < outer.size(); ++d) {
    if (inner[d].size() != outer[d].size()) return false;
  }
  return true;
}

Shape shape_of(RegionView region) {
  std::vector<std::int64_t> extents;
  extents.reserve(region.size());
  for (const Interval& i : region) extents.push_back(i.size());
  return Shape(std::move(extents));
}

std::int64_t dot_begin(RegionView outer, RegionView inner,
                       const std::vector<std::int64_t>& strides) {
  std::int64_t at = 0;
  for (std::size_t d = 0; d < outer.size(); ++d) {
    at += (inner[d].begin - outer[d].begin) * strides[d];
  }
  return at;
}

}  // namespace

void StagedMeter::add(std::int64_t bytes) {
  std::int64_t now = now_.fetch_add(bytes) + bytes;
  std::int64_t peak = peak_.load();
  while (now > peak && !peak_.compare_exchange_weak(peak, now)) {
  }
}

std::byte* MeteredBuffer::need(std::uint64_t bytes) {
  if (bytes > buffer_.size()) {
    std::size_t before = buffer_.size();
    buffer_.reserve(bytes);
    meter_->add(static_cast<std::int64_t>(buffer_.size() - before));
  }
  return buffer_.data();
}

void MeteredBuffer::fill(std::uint64_t bytes) {
  std::byte* page = need(bytes);
  for (std::uint64_t at = 0; at < bytes; at += kIoAlignment) page[at] = std::byte{0};
}

void Worker::drop_decoded() {
  decoded.clear();
  meter->add(-static_cast<std::int64_t>(decoded_bytes));
  gate->give(decoded_bytes);
  decoded_bytes = 0;
}

namespace {

/// Bytes taken from the gate, and from the meter's point of view staged, until they are kept or
/// given back.
class Reservation {
 public:
  Reservation(Worker& worker, std::uint64_t bytes, const GatherOptions& options)
      : worker_(worker), bytes_(bytes) {
    if (worker.decoded_bytes + bytes > options.decoded_bytes) worker.drop_decoded();
    if (!worker.gate->try_take(bytes)) {
      worker.drop_decoded();
      worker.gate->take(bytes, options.cancel);
    }
    worker.meter->add(static_cast<std::int64_t>(bytes));
  }
  ~Reservation() { give(bytes_); }
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;

  /// `bytes` of it stay with the worker, which gives them back.
  void keep(std::uint64_t bytes) {
    TESSERA_CHECK(bytes <= bytes_);
    give(bytes_ - bytes);
    worker_.decoded_bytes += bytes;
    bytes_ = 0;
  }

 private:
  void give(std::uint64_t bytes) {
    worker_.gate->give(bytes);
    worker_.meter->add(-static_cast<std::int64_t>(bytes));
  }
  Worker& worker_;
  std::uint64_t bytes_;
};

}  // namespace

/// The part of one source piece that one task needs: one run of the chunk, or, strided, a span of
/// the file.
struct Gather::Need {
  std::uint32_t task = 0;
  std::uint64_t chunk = 0;  // in Manifest::chunks
  const Source* source = nullptr;
  const std::vector<std::int64_t>* strides = nullptr;
  Region common;          // of the piece and the task's region
  std::int64_t base = 0;  // of a coded view: elements of the item before the chunk's first
  std::int64_t first_element =
      0;                     // of the chunk's ravel (strided: steps from the chunk's first element)
  std::uint64_t offset = 0;  // bytes in the file (kExtent)
  std::uint64_t length = 0;  // bytes
};

struct Gather::Op {
  const TargetSpan* target = nullptr;
  std::uint32_t number = 0;
  Region common;
  bool run = false;  // one run on both sides
};

namespace {

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
  auto in_file = std::stable_partition(needs.begin(), needs.end(), [](const Need& need) {
    return need.source->kind != Source::Kind::kExtent;
  });
  for (auto need = needs.begin(); need != in_file; ++need) {
    in_tensor(manifest_.tensors[tasks[need->task].tensor].name,
              [&] { from_memory(tasks, *need, worker, fragments); });
  }
  std::stable_sort(in_file, needs.end(), [](const Need& a, const Need& b) {
    return std::tie(a.source->file, a.offset) < std::tie(b.source->file, b.offset);
  });
  for (auto first = in_file; first != needs.end();) {
    if (options_.cancel != nullptr) options_.cancel->check();
    std::uint64_t end = first->offset + first->length;
    auto last = first + 1;
    for (; last != needs.end() && last->source->file == first->source->file; ++last) {
      if (last->offset > end + kReadThroughBytes) break;
      std::uint64_t longer = std::max(end, last->offset + last->length);
      if (longer - first->offset > options_.block_bytes) break;
      end = longer;
    }
    read_group(tasks, {first, last}, worker, fragments);
    first = last;
  }
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

const Bytes& Gather::decoded(const StoredTensor& tensor, const Need& need, Worker& worker) const {
  const Source& source = *need.source;
  const std::pair key(source.file, source.offset);  // several chunks may be views of one item
  if (auto found = worker.decoded.find(key); found != worker.decoded.end()) {
    if (prover_ != nullptr && prover_->wants(need.chunk)) {
      in_file(files_.path(source.file), [&] { prove_apart(need, worker); });
    }
    return found->second;
  }
  return in_file(files_.path(source.file), [&]() -> const Bytes& {
    const CodedSize size = coded_size(manifest_, tensor, need.chunk);
    const std::uint64_t total = worker.gate->total_bytes();
    if (size.at_once() > total) {
      fail(Code::kResourceExhausted,
           fmt::format("decoding a compressed item takes {} bytes, there are {} for such items",
                       size.at_once(), total),
           "raise --mem-limit");
    }
    // An item may decode to more than its chunks tell (a chunk cut off at the tensor's end): then
    // once more, alone.
    for (bool alone = false;; alone = true) {
      const std::uint64_t taken = alone ? total : size.at_once();
      const std::uint64_t rest = total - size.stored;
      const std::uint64_t most =
          !alone ? size.largest
                 : std::max(size.largest, size.several ? std::min(rest, total / 2) : rest);
      Reservation mine(worker, taken, options_);
      bool is_read = false;
      try {
        Bytes out = decode_item(need, most, worker, is_read);
        mine.keep(out.size());
        return worker.decoded[key] = std::move(out);
      } catch (const Error& error) {
        if (alone || !is_read || error.code() != Code::kCorrupt) throw;
      }
    }
  });
}

/// What is read and decoded here is in the caller's reservation.
Bytes Gather::decode_item(const Need& need, std::uint64_t most_bytes, Worker& worker,
                          bool& is_read) const {
  const Source& source = *need.source;
  StagedMeter uncounted;
  std::optional<MeteredBuffer> raw(std::in_place, uncounted);
  const std::byte* data = nullptr;
  read(source.file, source.offset, source.offset + source.length, worker, *raw, &data);
  ByteView in{data, static_cast<std::size_t>(source.length)};
  if (prover_ != nullptr && prover_->wants(need.chunk) && prover_->claim(need.chunk)) {
    prover_->add(need.chunk, source.offset, source.length, crc32(0, in));
  }
  is_read = true;
  const std::uint32_t chain = source.view != 0 ? manifest_.views[source.side].codecs : source.side;
  Bytes out;
  for (const std::string& codec : manifest_.codecs[chain]) {
    out = decode(codec, in, most_bytes);
    raw.reset();
    in = out;
  }
  return out;
}

void Gather::from_memory(std::span<const CopyTask> tasks, const Need& need, Worker& worker,
                         std::vector<Fragment>* fragments) const {
  const CopyTask& task = tasks[need.task];
  auto es = static_cast<std::uint64_t>(task.geometry->stored_element_bytes);
  const Source& source = *need.source;
  switch (source.kind) {
    case Source::Kind::kPending:
      fail(Code::kInternal, "its data was not located before it was read");
    case Source::Kind::kMemory:
      place(task, need, reinterpret_cast<const std::byte*>(need.offset), false, worker, fragments);
      return;
    case Source::Kind::kFill: {
      const Bytes& element = manifest_.inline_bytes[source.side];
      TESSERA_CHECK(element.size() == es);
      std::byte* filled = worker.private_copy.need(need.length);
      for (std::uint64_t at = 0; at < need.length; at += es) {
        std::memcpy(filled + at, element.data(), es);
      }
      place(task, need, filled, false, worker, fragments);
      return;
    }
    default:
      break;
  }
  const Bytes& bytes = source.kind == Source::Kind::kInline
                           ? manifest_.inline_bytes[source.side]
                           : decoded(manifest_.tensors[task.tensor], need, worker);
  std::uint64_t begin = static_cast<std::uint64_t>(need.first_element) * es;
  if (begin + need.length > bytes.size()) {
    fail(Code::kCorrupt,
         fmt::format("its stored bytes decode to {} bytes, which is too few", bytes.size()));
  }
  place(task, need, bytes.data() + begin, false, worker, fragments);
}

void Gather::place(const CopyTask& task, const Need& need, const std::byte* bytes, bool prove,
                   Worker& worker, std::vector<Fragment>* fragments) const {
  auto es = static_cast<std::uint64_t>(task.geometry->element_bytes);
  std::vector<Op> ops;
  std::int64_t covered = 0;
  const StoredTensor& tensor = manifest_.tensors[task.tensor];
  bool is_cast = tensor.stored_dtype() != tensor.spec.dtype;
  bool all_runs = need.strides == nullptr && need.source->flags == 0 && !is_cast;
  for (std::uint32_t i = 0; i < task.targets.size(); ++i) {
    Op op;
    if (!intersect_regions(need.common, task.targets[i].box, op.common)) continue;
    op.target = &task.targets[i];
    op.number = i;
    op.run = need.strides == nullptr && is_run(need.common, op.common) &&
             is_run(op.target->box, op.common);
    covered += region_numel(op.common);
    all_runs = all_runs && op.run && op.target->want_crc;
    ops.push_back(std::move(op));
  }
  // The one checksum of a byte serves the source's record and the target alike, where the runs go
  // over unchanged.
  bool fused = prove && all_runs && fragments != nullptr && covered == region_numel(need.common);
  if (prove && !fused) {
    prover_->add(need.chunk, need.offset, need.length, crc32(0, {bytes, need.length}));
  }
  if (need.source->flags != 0) {
    std::byte* changed = worker.private_copy.need(need.length);
    std::memcpy(changed, bytes, need.length);
    apply_source_flags(tensor.stored_dtype(), need.source->flags,
                       {changed, static_cast<std::size_t>(need.length)});
    bytes = changed;
  }
  if (is_cast) return place_cast(task, need, bytes, worker);
  std::vector<std::int64_t> source_strides =
      need.strides != nullptr ? *need.strides : dense_strides(need.common);
  for (const Op& op : ops) {
    std::uint64_t from =
        static_cast<std::uint64_t>(dot_begin(need.common, op.common, source_strides)) * es;
    std::uint64_t to = static_cast<std::uint64_t>(offset_inside(op.target->box, op.common)) * es;
    if (!op.run) {
      copy_region(shape_of(op.common), static_cast<int>(es), bytes + from, source_strides,
                  op.target->data + to, dense_strides(op.target->box));
      continue;
    }
    std::uint64_t length = static_cast<std::uint64_t>(region_numel(op.common)) * es;
    if (!op.target->want_crc || fragments == nullptr) {
      std::memcpy(op.target->data + to, bytes + from, length);
      continue;
    }
    for (std::uint64_t at = 0; at < length;) {
      std::uint64_t place_in_file = op.target->file_offset + to + at;
      std::uint64_t part = std::min(length - at, kMiB - place_in_file % kMiB);
      std::uint32_t crc = copy_crc32(0, op.target->data + to + at,
                                     {bytes + from + at, static_cast<std::size_t>(part)});
      fragments->push_back({need.task, op.number, to + at, part, crc});
      if (fused) prover_->add(need.chunk, need.offset + from + at, part, crc);
      at += part;
    }
  }
}

/// Casts each element of the need once, block by block, and hands it to every target that wants it.
/// No checksum comes for free here: the target's are made when it is written.
void Gather::place_cast(const CopyTask& task, const Need& need, const std::byte* bytes,
                        Worker& worker) const {
  const StoredTensor& tensor = manifest_.tensors[task.tensor];
  const int from_bytes = task.geometry->stored_element_bytes;
  const int to_bytes = task.geometry->element_bytes;
  const auto source_strides = need.strides != nullptr ? *need.strides : dense_strides(need.common);
  std::byte* compact = worker.cast.need(static_cast<std::uint64_t>(kCastNumel) *
                                        static_cast<std::uint64_t>(from_bytes + to_bytes));
  std::byte* cast = compact + kCastNumel * from_bytes;
  CastCounts& counts = worker.casts[task.tensor];
  std::vector<const TargetSpan*> targets;
  Region block;
  Region common;
  for (const TargetSpan& target : task.targets) {
    if (intersect_regions(need.common, target.box, common)) targets.push_back(&target);
  }
  RegionCursor blocks(need.common, kCastNumel);
  while (blocks.next(block)) {
    auto numel = static_cast<std::size_t>(region_numel(block));
    const std::vector<std::int64_t> strides = dense_strides(block);
    const std::byte* dense = bytes + dot_begin(need.common, block, source_strides) * from_bytes;
    if (need.strides != nullptr) {  // a dense source: the block is one run of it
      copy_region(shape_of(block), from_bytes, dense, source_strides, compact, strides);
      dense = compact;
    }
    CastCounts lost =
        cast_elements(tensor.stored_dtype(), {dense, numel * static_cast<std::size_t>(from_bytes)},
                      tensor.spec.dtype, {cast, numel * static_cast<std::size_t>(to_bytes)});
    counts.overflow_to_inf += lost.overflow_to_inf;
    counts.underflow_to_zero += lost.underflow_to_zero;
    for (const TargetSpan* target : targets) {
      if (!intersect_regions(block, target->box, common)) continue;
      copy_region(shape_of(common), to_bytes, cast + offset_inside(block, common) * to_bytes,
                  strides, target->data + offset_inside(target->box, common) * to_bytes,
                  dense_strides(target->box));
    }
  }
}

}  // namespace tessera

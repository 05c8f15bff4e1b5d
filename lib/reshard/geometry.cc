#include "lib/reshard/geometry.h"

#include <fmt/format.h>
#include <tessera/base/error.h>

#include "lib/reshard/source_choice.h"

namespace tessera {

namespace {

/// The chunk as an interval of the tensor's own ravel, when it is one.
std::optional<Interval> as_interval(const Shape& shape, const Chunk& chunk) {
  int d = 0;
  while (d < shape.rank() && chunk.box.shape[d] == 1) ++d;
  // Dim d may be cut; all after it must be whole.
  for (int after = d + 1; after < shape.rank(); ++after) {
    if (chunk.box.shape[after] != shape[after]) return std::nullopt;
  }
  std::int64_t begin = 0;
  for (int dim = 0; dim < shape.rank(); ++dim) begin = begin * shape[dim] + chunk.box.begin(dim);
  return Interval{begin + chunk.flat_begin, begin + chunk.flat_end};
}

/// Row-major dense strides need no table: steps of dims of extent 1 do not matter.
bool is_dense(const Shape& shape, const std::vector<std::int64_t>& strides) {
  std::vector<std::int64_t> dense = shape.strides();
  if (strides.size() != dense.size()) return false;
  for (std::size_t d = 0; d < dense.size(); ++d) {
    if (shape[static_cast<int>(d)] > 1 && strides[d] != dense[d]) return false;
  }
  return true;
}

/// Which tensor dims fall together: group[d] is the collapsed dim of d.
std::vector<int> group_dims(const Shape& shape, const std::vector<ChunkPiece>& pieces) {
  std::vector<int> group(static_cast<std::size_t>(shape.rank()), 0);
  int current = 0;
  for (int d = 1; d < shape.rank(); ++d) {
    bool whole = true;
    for (const ChunkPiece& piece : pieces) {
      if (piece.box.shape[d] != shape[d]) {
        whole = false;
        break;
      }
    }
    if (!whole) ++current;
    group[static_cast<std::size_t>(d)] = current;
  }
  return group;
}

Region grouped(const Box& box, const Shape& shape, const std::vector<int>& group) {
  Region region(static_cast<std::size_t>(group.back()) + 1);
  int last = -1;
  for (int d = 0; d < shape.rank(); ++d) {
    int g = group[static_cast<std::size_t>(d)];
    Interval& interval = region[static_cast<std::size_t>(g)];
    if (g != last) {
      interval = {box.begin(d), box.end(d)};
    } else {  // whole along d: one step of the dims before it is shape[d] elements
      interval = {interval.begin * shape[d], interval.end * shape[d]};
    }
    last = g;
  }
  return region;
}

class GeometryBuilder {
 public:
  GeometryBuilder(const Manifest& manifest, std::uint32_t tensor,
                  std::span<const std::uint32_t> chunks, std::span<const Chunk> targets)
      : manifest_(manifest), tensor_(manifest.tensors[tensor]), targets_(targets) {
    for (std::uint32_t c : chunks) add_source_chunk(c);
  }

  Geometry build() {
    if (is_sub_byte(tensor_.spec.dtype)) {
      build_bytes();
    } else {
      geometry_.element_bytes = element_bytes(tensor_.spec.dtype);
      geometry_.stored_element_bytes = element_bytes(tensor_.stored_dtype());
      if (tensor_.spec.shape.rank() == 0 || (!geometry_.has_strided && build_flat())) {
        if (tensor_.spec.shape.rank() == 0) build_scalar();
      } else {
        build_boxes();
      }
    }
    geometry_.sources.seal();
    geometry_.targets.seal();
    return std::move(geometry_);
  }

 private:
  void add_source_chunk(std::uint32_t c) {
    Chunk chunk = manifest_.chunk(tensor_, c);
    const Source& source = manifest_.source(tensor_, c);
    SourceChunk entry{tensor_.first_chunk + c, nullptr, chunk.numel(), 0};
    const std::vector<std::int64_t>* strides = nullptr;
    const bool plain = source.kind == Source::Kind::kExtent || source.kind == Source::Kind::kMemory;
    if (plain && source.side != 0) {
      strides = &manifest_.strides[source.side - 1];
    } else if (source.view != 0 &&
               (source.kind == Source::Kind::kCoded || source.kind == Source::Kind::kComputed)) {
      const CodedView& view = manifest_.views[source.side];
      entry.first_element = view.first_element;
      if (!view.strides.empty()) strides = &view.strides;
    }
    if (strides != nullptr && !is_dense(chunk.box.shape, *strides)) {
      if (!chunk.is_whole_box() || strides->size() != static_cast<std::size_t>(chunk.box.rank())) {
        fail(Code::kUnsupported, "a strided source that holds a flat range");
      }
      entry.strides = strides;
      geometry_.has_strided = geometry_.has_strided || chunk.numel() > 0;
    }
    if (source.kind == Source::Kind::kComputed) add_parts(computed_index(manifest_, source));
    geometry_.has_coded = geometry_.has_coded || source.kind == Source::Kind::kCoded;
    geometry_.has_pending = geometry_.has_pending || source.kind == Source::Kind::kPending;
    geometry_.source_chunks.push_back(entry);
    sources_.push_back(std::move(chunk));
  }

  void add_parts(std::uint32_t computed) {
    for (const PartGeometries& known : geometry_.computed)
      if (known.computed == computed) return;
    PartGeometries made{computed, {}};
    SourceChooser chooser(manifest_);
    for (const std::uint32_t part : manifest_.computed[computed].parts) {
      auto geometry = std::make_shared<const Geometry>(
          make_geometry(manifest_, part, chooser.choose(part), {}));
      geometry_.has_coded = geometry_.has_coded || geometry->has_coded;
      geometry_.has_pending = geometry_.has_pending || geometry->has_pending;
      made.parts.push_back(std::move(geometry));
    }
    geometry_.computed.push_back(std::move(made));
  }

  void build_bytes() {
    auto single_whole = [this](std::span<const Chunk> chunks) {
      return chunks.empty() || (chunks.size() == 1 && chunks[0].is_whole_box() &&
                                chunks[0].box == Box::whole(tensor_.spec.shape));
    };
    bool whole = single_whole(sources_);
    for (const Chunk& target : targets_) whole = whole && single_whole({&target, 1});
    if (!whole || geometry_.has_strided) {
      fail(Code::kUnsupported,
           fmt::format("{} elements do not start at byte borders; such a tensor cannot be sharded",
                       torch_name(tensor_.spec.dtype)),
           "keep it whole with --replicate");
    }
    Region all{{0, tensor_.spec.size_bytes()}};
    begin(1, {all[0].end});
    for (std::uint32_t i = 0; i < sources_.size(); ++i) {
      geometry_.source_chunks[i].numel = all[0].end;
      if (all[0].end > 0) geometry_.sources.add(all, i, 0);
    }
    for (std::uint32_t i = 0; i < targets_.size(); ++i) {
      if (all[0].end > 0) geometry_.targets.add(all, i, 0);
    }
  }

  void build_scalar() {
    begin(1, {1});
    Region one{{0, 1}};
    for (std::uint32_t i = 0; i < sources_.size(); ++i) {
      if (sources_[i].numel() > 0) geometry_.sources.add(one, i, 0);
    }
    for (std::uint32_t i = 0; i < targets_.size(); ++i) {
      if (targets_[i].numel() > 0) geometry_.targets.add(one, i, 0);
    }
    // The strides of a scalar have no entries; one element needs none.
    for (SourceChunk& chunk : geometry_.source_chunks) chunk.strides = nullptr;
    geometry_.has_strided = false;
  }

  bool build_flat() {
    const Shape& shape = tensor_.spec.shape;
    std::vector<Interval> intervals;
    intervals.reserve(sources_.size() + targets_.size());
    auto all_flat = [&](std::span<const Chunk> chunks) {
      for (const Chunk& chunk : chunks) {
        if (chunk.numel() == 0) {
          intervals.push_back({});
          continue;
        }
        std::optional<Interval> interval = as_interval(shape, chunk);
        if (!interval) return false;
        intervals.push_back(*interval);
      }
      return true;
    };
    if (!all_flat(sources_) || !all_flat(targets_)) return false;
    begin(1, {shape.numel()});
    for (std::size_t i = 0; i < intervals.size(); ++i) {
      if (intervals[i].size() == 0) continue;
      bool source = i < sources_.size();
      auto owner = static_cast<std::uint32_t>(source ? i : i - sources_.size());
      (source ? geometry_.sources : geometry_.targets).add({&intervals[i], 1}, owner, 0);
    }
    return true;
  }

  void build_boxes() {
    const Shape& shape = tensor_.spec.shape;
    std::vector<ChunkPiece> pieces;
    std::vector<std::uint32_t> owners;
    auto decompose_all = [&](std::span<const Chunk> chunks) {
      for (std::uint32_t i = 0; i < chunks.size(); ++i) {
        for (ChunkPiece& piece : decompose(chunks[i])) {
          pieces.push_back(std::move(piece));
          owners.push_back(i);
        }
      }
    };
    decompose_all(sources_);
    std::size_t source_pieces = pieces.size();
    decompose_all(targets_);
    std::vector<int> group;
    if (geometry_.has_strided) {  // strides are per dim of the tensor: keep them apart
      geometry_.collapsed = false;
      for (int d = 0; d < shape.rank(); ++d) group.push_back(d);
    } else {
      group = group_dims(shape, pieces);
    }
    Region all = grouped(Box::whole(shape), shape, group);
    std::vector<std::int64_t> extents;
    for (const Interval& i : all) extents.push_back(i.end);
    begin(static_cast<int>(all.size()), std::move(extents));
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      (i < source_pieces ? geometry_.sources : geometry_.targets)
          .add(grouped(pieces[i].box, shape, group), owners[i], pieces[i].chunk_offset);
    }
  }

  void begin(int rank, std::vector<std::int64_t> extents) {
    geometry_.shape = std::move(extents);
    geometry_.sources = PieceTable(rank);
    geometry_.targets = PieceTable(rank);
  }

  const Manifest& manifest_;
  const StoredTensor& tensor_;
  std::span<const Chunk> targets_;
  std::vector<Chunk> sources_;
  Geometry geometry_;
};

}  // namespace

Region Geometry::whole() const {
  Region region;
  for (std::int64_t extent : shape) region.push_back({0, extent});
  return region;
}

std::int64_t Geometry::numel() const {
  std::int64_t numel = 1;
  for (std::int64_t extent : shape) numel *= extent;
  return numel;
}

std::size_t Geometry::memory_bytes() const {
  return sizeof *this + sources.memory_bytes() + targets.memory_bytes() +
         source_chunks.size() * sizeof(SourceChunk);
}

Geometry make_geometry(const Manifest& manifest, std::uint32_t tensor,
                       std::span<const std::uint32_t> chunks, std::span<const Chunk> targets) {
  return in_tensor(manifest.tensors[tensor].name,
                   [&] { return GeometryBuilder(manifest, tensor, chunks, targets).build(); });
}

std::vector<std::int64_t> dense_strides(RegionView region) {
  std::vector<std::int64_t> strides(region.size());
  std::int64_t step = 1;
  for (std::size_t d = region.size(); d-- > 0;) {
    strides[d] = step;
    step *= region[d].size();
  }
  return strides;
}

RegionCursor::RegionCursor(RegionView whole, std::int64_t max_numel)
    : whole_(whole.begin(), whole.end()) {
  done_ = region_numel(whole_) == 0;
  if (done_) return;
  std::int64_t inner = region_numel(whole_);
  for (split_dim_ = 0; split_dim_ + 1 < whole_.size(); ++split_dim_) {
    inner /= whole_[split_dim_].size();
    if (inner <= max_numel) break;
  }
  if (split_dim_ + 1 == whole_.size()) inner = 1;
  step_ = std::max<std::int64_t>(1, max_numel / inner);
  for (std::size_t d = 0; d <= split_dim_; ++d) at_.push_back(whole_[d].begin);
}

bool RegionCursor::next(Region& out) {
  if (done_) return false;
  out = whole_;
  for (std::size_t d = 0; d < split_dim_; ++d) out[d] = {at_[d], at_[d] + 1};
  out[split_dim_] = {at_[split_dim_], std::min(at_[split_dim_] + step_, whole_[split_dim_].end)};
  at_[split_dim_] = out[split_dim_].end;
  std::size_t d = split_dim_;
  while (at_[d] >= whole_[d].end) {
    if (d == 0) {
      done_ = true;
      break;
    }
    at_[d] = whole_[d].begin;
    ++at_[--d];
  }
  return true;
}

}  // namespace tessera

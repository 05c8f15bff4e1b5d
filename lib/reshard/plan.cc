#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/large_array.h>
#include <tessera/reshard/plan.h>

#include <algorithm>
#include <numeric>

#include "lib/reshard/geometry.h"
#include "lib/reshard/source_choice.h"

namespace tessera {

namespace {

void check_inside(const Manifest& source, const Segment& segment, const ChunkView& chunk) {
  const StoredTensor& tensor = source.tensors[segment.tensor];
  if (chunk.lies_in(tensor.spec.shape)) return;
  in_tensor(tensor.name, [&] {
    fail(Code::kInternal, fmt::format("the output plan asks for {} of {}", chunk.to_string(),
                                      tensor.spec.to_string()));
  });
}

/// Boxes of a chunk in the tensor's own dims (a scalar: one dim of 1).
void add_boxes(PieceTable& table, const Chunk& chunk, std::uint32_t owner) {
  for (const ChunkPiece& piece : decompose(chunk)) {
    Region region;
    for (int d = 0; d < piece.box.rank(); ++d) {
      region.push_back({piece.box.begin(d), piece.box.end(d)});
    }
    if (region.empty()) region.push_back({0, 1});
    table.add(region, owner, piece.chunk_offset);
  }
}

/// Leaves out chunks of which no segment wants anything: where the segments are only a part of
/// their tensor.
void keep_wanted(const Manifest& source, const OutputPlan& output, std::uint32_t index,
                 std::span<const std::uint64_t> segments, std::vector<std::uint32_t>& chosen) {
  const StoredTensor& tensor = source.tensors[index];
  if (chosen.size() < 2) return;
  std::int64_t wanted = 0;
  for (std::uint64_t s : segments) wanted += output.chunks[output.segments[s].payload].numel();
  if (wanted >= tensor.spec.shape.numel()) return;
  PieceTable targets(std::max(tensor.spec.shape.rank(), 1));
  for (std::uint64_t s : segments)
    add_boxes(targets, output.chunks[output.segments[s].payload].chunk(), 0);
  targets.seal();
  std::erase_if(chosen, [&](std::uint32_t c) {
    PieceTable pieces(std::max(tensor.spec.shape.rank(), 1));
    add_boxes(pieces, source.chunk(tensor, c), c);
    bool used = false;
    for (std::size_t i = 0; i < pieces.size() && !used; ++i)
      targets.query(pieces.region(i), [&](std::size_t, const Region&) { used = true; });
    return !used;
  });
}

/// Bytes that a tensor is read from.
std::uint64_t bytes_read_of(const Manifest& source, std::uint32_t index) {
  const StoredTensor& tensor = source.tensors[index];
  const TensorSpec stored{tensor.stored_dtype(), tensor.spec.shape};
  const bool is_computed =
      tensor.chunk_count == 1 && source.source(tensor, 0).kind == Source::Kind::kComputed;
  if (!is_computed) return static_cast<std::uint64_t>(stored.size_bytes());
  std::uint64_t bytes = 0;
  for (const std::uint32_t part :
       source.computed[computed_index(source, source.source(tensor, 0))].parts)
    bytes += bytes_read_of(source, part);
  return bytes;
}

Box to_box(const Region& region, int rank) {
  Box box;
  std::vector<std::int64_t> extents;
  for (int d = 0; d < rank; ++d) {
    box.origin.push_back(region[static_cast<std::size_t>(d)].begin);
    extents.push_back(region[static_cast<std::size_t>(d)].size());
  }
  box.shape = Shape(std::move(extents));
  return box;
}

}  // namespace

std::string CopyOp::to_string(const Manifest& source, const OutputPlan& output) const {
  const StoredTensor& stored = source.tensors[tensor];
  const Source& from = source.chunks.source(source_chunk);
  std::string place = from.file < source.files.size() ? source.files[from.file].path : "";
  auto file =
      std::upper_bound(output.files.begin(), output.files.end(), segment,
                       [](std::uint64_t s, const OutputFile& f) { return s < f.first_segment; });
  TESSERA_CHECK(file != output.files.begin());
  return fmt::format("{} {}: chunk {} of {} -> {} at {}", stored.name, box.to_string(),
                     source_chunk - stored.first_chunk, place, std::prev(file)->path,
                     output.segments[segment].offset);
}

Plan::Plan(const Manifest& source, const OutputPlan& output) : source_(&source), output_(&output) {
  // Segments by tensor, tensors by first segment.
  std::vector<std::uint32_t> number(source.tensors.size(), UINT32_MAX);
  std::vector<std::uint64_t> counts;
  for (const Segment& segment : output.segments) {
    if (segment.kind != Segment::Kind::kTensor || segment.length == 0) continue;
    TESSERA_CHECK(segment.tensor < source.tensors.size() && segment.payload < output.chunks.size());
    check_inside(source, segment, output.chunks[segment.payload]);
    std::uint32_t& n = number[segment.tensor];
    if (n == UINT32_MAX) {
      n = static_cast<std::uint32_t>(tensors_.size());
      tensors_.push_back({segment.tensor, 0, 0, 0, 0});
    }
    ++tensors_[n].segment_count;
    tensor_bytes_ += segment.length;
  }
  std::uint64_t at = 0;
  for (Entry& entry : tensors_) {
    entry.first_segment = at;
    at += entry.segment_count;
    entry.segment_count = 0;
  }
  reserve_large(segments_, at);
  segments_.resize(at);
  for (std::uint64_t s = 0; s < output.segments.size(); ++s) {
    const Segment& segment = output.segments[s];
    if (segment.kind != Segment::Kind::kTensor || segment.length == 0) continue;
    Entry& entry = tensors_[number[segment.tensor]];
    segments_[entry.first_segment + entry.segment_count++] = s;
  }
  SourceChooser chooser(source);
  for (Entry& entry : tensors_) {
    std::vector<std::uint32_t> chosen = chooser.choose(entry.tensor);
    keep_wanted(source, output, entry.tensor,
                std::span(segments_).subspan(entry.first_segment, entry.segment_count), chosen);
    entry.first_source = sources_.size();
    entry.source_count = static_cast<std::uint32_t>(chosen.size());
    sources_.insert(sources_.end(), chosen.begin(), chosen.end());
    source_bytes_ += bytes_read_of(source, entry.tensor);
  }
}

Plan Plan::part(std::uint64_t first, std::uint64_t last) const {
  Plan part;
  part.source_ = source_;
  part.output_ = output_;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const std::span<const std::uint64_t> all = segments(i);
    const auto begin = std::lower_bound(all.begin(), all.end(), first);
    const auto end = std::lower_bound(begin, all.end(), last);
    if (begin == end) continue;
    std::vector<std::uint32_t> chosen(sources(i).begin(), sources(i).end());
    keep_wanted(*source_, *output_, tensors_[i].tensor, std::span(begin, end), chosen);
    part.tensors_.push_back({tensors_[i].tensor, static_cast<std::uint32_t>(chosen.size()),
                             part.sources_.size(), part.segments_.size(),
                             static_cast<std::uint64_t>(end - begin)});
    part.sources_.insert(part.sources_.end(), chosen.begin(), chosen.end());
    part.segments_.insert(part.segments_.end(), begin, end);
    for (auto segment = begin; segment != end; ++segment)
      part.tensor_bytes_ += output_->segments[*segment].length;
    for (const std::uint32_t c : chosen)
      part.source_bytes_ += source_->source(source_->tensors[tensors_[i].tensor], c).length;
  }
  return part;
}

std::vector<std::uint64_t> Plan::chosen_chunks() const {
  std::vector<std::uint64_t> chunks;
  for (std::size_t i = 0; i < tensor_count(); ++i)
    for (const std::uint32_t c : sources(i))
      chunks.push_back(source_->tensors[tensor(i)].first_chunk + c);
  return chunks;
}

std::span<const std::uint32_t> Plan::sources(std::size_t i) const {
  return {sources_.data() + tensors_[i].first_source, tensors_[i].source_count};
}

std::span<const std::uint64_t> Plan::segments(std::size_t i) const {
  return {segments_.data() + tensors_[i].first_segment, tensors_[i].segment_count};
}

std::vector<CopyOp> Plan::ops(std::size_t i) const {
  const StoredTensor& tensor = source_->tensors[tensors_[i].tensor];
  int rank = tensor.spec.shape.rank();
  PieceTable sources_table(std::max(rank, 1));
  for (std::uint32_t c : sources(i)) add_boxes(sources_table, source_->chunk(tensor, c), c);
  sources_table.seal();
  std::vector<CopyOp> ops;
  for (std::uint64_t segment : segments(i)) {
    PieceTable target(std::max(rank, 1));
    add_boxes(target, output_->chunks[output_->segments[segment].payload].chunk(), 0);
    for (std::size_t t = 0; t < target.size(); ++t) {
      sources_table.query(target.region(t), [&](std::size_t s, const Region& common) {
        ops.push_back({tensors_[i].tensor, tensor.first_chunk + sources_table.owner(s), segment,
                       to_box(common, rank)});
      });
    }
  }
  return ops;
}

std::size_t Plan::memory_bytes() const {
  return tensors_.capacity() * sizeof(Entry) + sources_.capacity() * sizeof(std::uint32_t) +
         segments_.capacity() * sizeof(std::uint64_t);
}

}  // namespace tessera

#include "lib/reshard/shares.h"

#include <tessera/base/error.h>
#include <tessera/storage/checksum.h>
#include <tessera/storage/file_system.h>

#include <algorithm>

namespace tessera {

namespace {

/// A border within this part of a share from a file's end goes there.
constexpr std::uint64_t kNearFileEnd = 16;
/// Shares this large are cut at whole MiB, so that each MiB's checksum has one writer.
constexpr std::uint64_t kLargeShareBytes = std::uint64_t{64} << 20;

/// Numbers of segments before and after the cuts. `cut_` lists each segment that was cut, once per
/// piece that it has more.
class CutNumbers {
 public:
  explicit CutNumbers(std::vector<std::uint64_t> cut) : cut_(std::move(cut)) {}

  std::uint64_t original(std::uint64_t piece) const {
    // Extra piece i of original c has the number c + i + 1.
    std::uint64_t low = 0, high = cut_.size();
    while (low < high) {
      const std::uint64_t middle = (low + high) / 2;
      if (cut_[middle] + middle + 1 <= piece) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return piece - low;
  }
  std::uint64_t first_piece(std::uint64_t segment) const {
    return segment + static_cast<std::uint64_t>(
                         std::lower_bound(cut_.begin(), cut_.end(), segment) - cut_.begin());
  }

 private:
  std::vector<std::uint64_t> cut_;
};

/// Renders by the numbers of the original plan, joining the checksums of cut segments.
class CutRenderer final : public OutputRenderer {
 public:
  CutRenderer(const OutputPlan& whole, CutNumbers numbers)
      : whole_(whole), numbers_(std::move(numbers)) {}

  Bytes render(const OutputPlan& plan, std::size_t segment, const SegmentCrc& crc) const override {
    return whole_.renderer->render(whole_, numbers_.original(segment), [&](std::size_t s) {
      const std::uint64_t first = numbers_.first_piece(s), last = numbers_.first_piece(s + 1);
      std::uint32_t joined = crc(first);
      for (std::uint64_t piece = first + 1; piece < last; ++piece)
        joined = crc32_combine(joined, crc(piece), plan.segments[piece].length);
      return joined;
    });
  }

 private:
  const OutputPlan& whole_;
  CutNumbers numbers_;
};

/// Where a share ends: before `segment`, or `cut_bytes` inside it.
struct Border {
  std::uint64_t segment = 0;
  std::uint64_t cut_bytes = 0;
  auto operator<=>(const Border&) const = default;
};

/// Bytes into `segment` at which it can be cut, at or before `at` (bytes into its file); 0:
/// nowhere.
std::uint64_t cut_inside(const Manifest& source, const Segment& segment, std::uint64_t at,
                         std::uint64_t share) {
  if (segment.kind != Segment::Kind::kTensor) return 0;
  const DType dtype = source.tensors[segment.tensor].spec.dtype;
  if (is_sub_byte(dtype)) return 0;
  const std::uint64_t block = share >= kLargeShareBytes ? kMiB : kIoAlignment;
  const std::uint64_t place = at / block * block;
  if (place <= segment.offset) return 0;
  // A whole block unless elements lie across it: the two writers then share that block.
  const std::uint64_t bytes = place - segment.offset;
  return bytes - bytes % static_cast<std::uint64_t>(element_bytes(dtype));
}

Border border_at(const Manifest& source, const OutputPlan& output, const OutputFile& file,
                 std::uint64_t at, std::uint64_t share) {
  const std::uint64_t end = file.first_segment + file.segment_count;
  if (at <= share / kNearFileEnd) return {file.first_segment, 0};
  if (file.size_bytes - at <= share / kNearFileEnd) return {end, 0};
  const auto first = output.segments.begin() + static_cast<std::ptrdiff_t>(file.first_segment);
  const auto last = output.segments.begin() + static_cast<std::ptrdiff_t>(end);
  const auto after = std::upper_bound(
      first, last, at, [](std::uint64_t byte, const Segment& s) { return byte < s.offset; });
  TESSERA_CHECK(after != first);
  const Segment& segment = *std::prev(after);
  const auto number = static_cast<std::uint64_t>(std::prev(after) - output.segments.begin());
  if (const std::uint64_t bytes = cut_inside(source, segment, at, share);
      bytes > 0 && bytes < segment.length)
    return {number, bytes};
  const bool nearer_end = segment.offset + segment.length - at < at - segment.offset;
  return {nearer_end ? number + 1 : number, 0};
}

std::vector<Border> find_borders(const Manifest& source, const OutputPlan& output, int parts) {
  const auto count = static_cast<std::uint64_t>(parts);
  const std::uint64_t total = output.total_bytes();
  const std::uint64_t share = total / count;
  std::vector<Border> borders{{0, 0}};
  std::size_t file = 0;
  std::uint64_t before = 0;  // bytes of the files before `file`
  for (std::uint64_t i = 1; i < count; ++i) {
    const std::uint64_t target = share * i + total % count * i / count;
    while (file < output.files.size() && before + output.files[file].size_bytes <= target)
      before += output.files[file++].size_bytes;
    Border border{output.segments.size(), 0};
    if (file < output.files.size())
      border = border_at(source, output, output.files[file], target - before, share);
    borders.push_back(std::max(border, borders.back()));
  }
  borders.push_back({output.segments.size(), 0});
  return borders;
}

/// Appends `segment`, in pieces that end at `cuts` (bytes into it, ascending).
void append_pieces(OutputPlan& out, const OutputPlan& whole, const Segment& segment,
                   std::span<const std::uint64_t> cuts) {
  if (cuts.empty()) {
    out.segments.push_back(segment);
    return;
  }
  const Chunk chunk = whole.chunks[segment.payload].chunk();
  const auto numel = static_cast<std::uint64_t>(chunk.numel());
  const std::uint64_t element = segment.length / numel;
  std::uint64_t from = 0;
  for (std::size_t i = 0; i <= cuts.size(); ++i) {
    const std::uint64_t to = i < cuts.size() ? cuts[i] : segment.length;
    Segment piece = segment;
    piece.offset += from;
    piece.length = to - from;
    piece.payload = out.chunks.size();
    Chunk part = chunk;
    part.flat_begin = chunk.flat_begin + static_cast<std::int64_t>(from / element);
    part.flat_end = chunk.flat_begin + static_cast<std::int64_t>(to / element);
    out.chunks.push_back(part);
    out.segments.push_back(piece);
    from = to;
  }
}

/// `whole` with every border between two segments; the borders' numbers become those of the result.
OutputPlan cut_plan(const OutputPlan& whole, std::vector<Border>& borders) {
  OutputPlan out = whole;
  out.segments.clear();
  out.segments.reserve(whole.segments.size() + borders.size());
  std::vector<std::uint64_t> cut;  // as CutNumbers wants it
  std::size_t next = 0;
  for (OutputFile& file : out.files) {
    const std::uint64_t first = file.first_segment, last = first + file.segment_count;
    file.first_segment = out.segments.size();
    for (std::uint64_t s = first; s < last; ++s) {
      std::vector<std::uint64_t> cuts;
      for (; next < borders.size() && borders[next].segment == s; ++next) {
        const std::uint64_t bytes = borders[next].cut_bytes;
        if (bytes > 0 && (cuts.empty() || cuts.back() != bytes)) cuts.push_back(bytes);
        borders[next] = {out.segments.size() + cuts.size(), 0};
      }
      append_pieces(out, whole, whole.segments[s], cuts);
      cut.insert(cut.end(), cuts.size(), s);
    }
    file.segment_count = out.segments.size() - file.first_segment;
  }
  for (; next < borders.size(); ++next) borders[next] = {out.segments.size(), 0};
  if (whole.renderer && !cut.empty())
    out.renderer = std::make_shared<CutRenderer>(whole, CutNumbers(std::move(cut)));
  return out;
}

}  // namespace

Shares make_shares(const Manifest& source, const OutputPlan& output, int parts) {
  TESSERA_CHECK(parts > 0);
  std::vector<Border> borders = find_borders(source, output, parts);
  Shares shares;
  shares.output = cut_plan(output, borders);
  for (const Border& border : borders) shares.borders.push_back(border.segment);
  const auto share_of = [&](std::uint64_t segment) {
    const auto after = std::upper_bound(shares.borders.begin(), shares.borders.end(), segment);
    const auto share = static_cast<std::uint32_t>(after - shares.borders.begin() - 1);
    return std::min(share, static_cast<std::uint32_t>(parts - 1));
  };
  for (const OutputFile& file : shares.output.files) {
    Shares::Writers writers{share_of(file.first_segment), share_of(file.first_segment)};
    bool any = false;
    for (std::uint64_t s = file.first_segment; s < file.first_segment + file.segment_count; ++s) {
      const Segment& segment = shares.output.segments[s];
      if (segment.kind != Segment::Kind::kTensor || segment.length == 0) continue;
      writers.last = share_of(s);
      if (!any) writers.first = writers.last;
      any = true;
    }
    shares.writers.push_back(writers);
  }
  return shares;
}

}  // namespace tessera

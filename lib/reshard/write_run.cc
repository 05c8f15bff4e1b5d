#include "lib/reshard/write_run.h"

#include <tessera/base/error.h>
#include <tessera/storage/file_system.h>

#include <algorithm>
#include <tuple>

namespace tessera {

namespace {

// Larger literals (a metadata file's body) are written at the end, apart.
constexpr std::uint64_t kMostJoinedBytes = std::uint64_t{64} << 10;

bool is_joinable(const Segment& segment) {
  if (segment.kind == Segment::Kind::kTensor) return segment.length == 0;
  return segment.length <= kMostJoinedBytes;
}

void append_whole(const OutputPlan& plan, std::uint64_t segment, WriteRun& run) {
  const Segment& s = plan.segments[segment];
  if (s.length == 0) return;
  run.parts.push_back({segment, s.offset, s.length, 0, 0, false});
}

/// Literals that end where `part` begins, if it begins its segment: first number of them.
std::uint64_t leading_literals(const OutputPlan& plan, const OutputFile& file,
                               const RunPart& part) {
  std::uint64_t first = part.segment;
  if (plan.segments[first].offset != part.offset) return first;
  std::uint64_t joined = 0;
  while (first > file.first_segment) {
    const Segment& before = plan.segments[first - 1];
    joined += before.length;
    if (before.kind != Segment::Kind::kLiteral || joined > kMostJoinedBytes) break;
    --first;
  }
  return first;
}

/// True when nothing but joinable segments lies between the end of `a` and the begin of `b`.
bool can_bridge(const OutputPlan& plan, const RunPart& a, const RunPart& b) {
  if (a.offset + a.length == b.offset) return true;
  const Segment& before = plan.segments[a.segment];
  if (a.offset + a.length != before.offset + before.length) return false;
  if (b.segment <= a.segment || b.offset != plan.segments[b.segment].offset) return false;
  if (b.offset - (a.offset + a.length) > kMostJoinedBytes) return false;
  for (std::uint64_t s = a.segment + 1; s < b.segment; ++s) {
    if (!is_joinable(plan.segments[s])) return false;
  }
  return true;
}

}  // namespace

std::vector<WriteRun> join_runs(const OutputPlan& plan, std::vector<FileRange> pieces,
                                std::uint64_t most_bytes) {
  std::sort(pieces.begin(), pieces.end(), [](const FileRange& a, const FileRange& b) {
    return std::tie(a.file, a.part.offset) < std::tie(b.file, b.part.offset);
  });
  std::vector<WriteRun> runs;
  const FileRange* last = nullptr;
  for (const FileRange& piece : pieces) {
    bool joins = last != nullptr && last->file == piece.file &&
                 can_bridge(plan, last->part, piece.part) &&
                 piece.part.offset + piece.part.length - runs.back().begin <= most_bytes;
    if (!joins) {
      WriteRun& run = runs.emplace_back();
      run.file = piece.file;
      std::uint64_t first = leading_literals(plan, plan.files[piece.file], piece.part);
      for (std::uint64_t s = first; s < piece.part.segment; ++s) append_whole(plan, s, run);
      run.begin = run.parts.empty() ? piece.part.offset : run.parts.front().offset;
    } else {
      for (std::uint64_t s = last->part.segment + 1; s < piece.part.segment; ++s) {
        append_whole(plan, s, runs.back());
      }
    }
    runs.back().parts.push_back(piece.part);
    runs.back().end = piece.part.offset + piece.part.length;
    last = &piece;
  }
  return runs;
}

namespace {

// Short runs go through the page cache anyway: no page of padding for each.
std::uint64_t alignment_of(const WriteRun& run) {
  return run.end - run.begin >= kMostJoinedBytes ? kIoAlignment : 1;
}

std::uint64_t placed(const WriteRun& run, std::uint64_t at) {
  std::uint64_t alignment = alignment_of(run);
  return (at + alignment - 1) / alignment * alignment + run.begin % alignment;
}

}  // namespace

std::uint64_t runs_buffer_bytes(const std::vector<WriteRun>& runs) {
  std::uint64_t at = 0;
  for (const WriteRun& run : runs) at = placed(run, at) + (run.end - run.begin);
  return at;
}

void place_runs(std::vector<WriteRun>& runs, std::byte* buffer) {
  std::uint64_t at = 0;  // the buffer itself is aligned
  for (WriteRun& run : runs) {
    at = placed(run, at);
    run.data = buffer + at;
    at += run.end - run.begin;
  }
}

std::uint32_t file_of_segment(const OutputPlan& plan, std::uint64_t segment) {
  auto after = std::upper_bound(
      plan.files.begin(), plan.files.end(), segment,
      [](std::uint64_t s, const OutputFile& f) { return s < f.first_segment + f.segment_count; });
  TESSERA_CHECK(after != plan.files.end() && segment >= after->first_segment);
  return static_cast<std::uint32_t>(after - plan.files.begin());
}

}  // namespace tessera

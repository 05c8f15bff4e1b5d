#include "lib/live/snapshot.h"

#include <tessera/base/parallel.h>
#include <tessera/tensor/region_copy.h>

#include <algorithm>

#include "lib/live/stream_copy.h"
#include "lib/state/live/live_structure.h"

namespace tessera {

namespace {

constexpr std::uint64_t kSnapshotAlignment = 64;
/// Below, starting a thread takes longer than it saves.
constexpr std::uint64_t kLeastShared = 4 << 20;
/// What a thread copies at a time.
constexpr std::uint64_t kPart = 2 << 20;

}  // namespace

void Snapshot::plan(const LiveState& state, MergedState& merged) {
  release();
  written();
  std::uint64_t end = 0;
  std::vector<std::uint64_t> copied;  // chunks
  merged.manifest.strides.clear();
  for (const OwnPiece& own : merged.own) {
    const LiveTensor& tensor =
        state.tensors()[state.dict().entries[own.entry].value.tensor_index()];
    const LivePiece& piece = tensor.pieces[own.piece];
    const auto* from = static_cast<const std::byte*>(piece.data);
    const std::uint64_t bytes = byte_size(piece.chunk.numel(), tensor.spec.dtype);
    const bool dense = piece.strides.empty();
    const auto keep = [&tensor](std::vector<std::shared_ptr<const void>>& owners) {
      if (tensor.owner && (owners.empty() || owners.back() != tensor.owner))
        owners.push_back(tensor.owner);
    };
    if (tensor.written_in_place && dense) {
      keep(in_place_);
      Source& source = merged.manifest.chunks.source(own.chunk);
      source.offset = reinterpret_cast<std::uint64_t>(from);
      source.side = 0;
      source.length = bytes;
      continue;
    }
    // What a callback copied at once is another's to wait for.
    Copies& copies = tensor.copied_at_once && !tensor.written_in_place ? early_ : copies_;
    copies.bytes += bytes;
    std::vector<Run>& runs = copies.runs;
    const bool follows = dense && !runs.empty() && runs.back().from + runs.back().bytes == from &&
                         runs.back().to + runs.back().bytes == end;
    if (!follows) end = (end + kSnapshotAlignment - 1) / kSnapshotAlignment * kSnapshotAlignment;
    if (follows)
      runs.back().bytes += bytes;
    else if (dense)
      runs.push_back({from, end, bytes});
    else
      copies.strided.push_back(
          {from, end, piece.chunk.box.shape, piece.strides, element_bytes(tensor.spec.dtype)});
    keep(owners_);
    copied.push_back(own.chunk);
    Source& source = merged.manifest.chunks.source(own.chunk);
    source.offset = end;  // from the buffer's beginning, until it is known
    source.side = 0;
    source.length = bytes;
    end += bytes;
  }
  reserve(end);
  for (const std::uint64_t chunk : copied)
    merged.manifest.chunks.source(chunk).offset += reinterpret_cast<std::uint64_t>(buffer_.data());
}

void Snapshot::reserve(std::uint64_t bytes) {
  if (bytes <= buffer_.size()) return;
  buffer_.reserve(bytes);
  for (std::uint64_t at = 0; at < bytes; at += kIoAlignment) buffer_.data()[at] = std::byte{0};
}

void Snapshot::copy(const Copies& copies, int threads) {
  const auto copy_strided = [&](const Strided& each) {
    copy_region(each.shape, each.element_bytes, each.from, each.strides, buffer_.data() + each.to,
                each.shape.strides());
  };
  if (threads < 2 || copies.bytes < kLeastShared) {
    for (const Run& run : copies.runs) stream_copy(buffer_.data() + run.to, run.from, run.bytes);
    for (const Strided& each : copies.strided) copy_strided(each);
    return;
  }
  std::vector<Run> parts;  // even work: a run may be all there is
  for (const Run& run : copies.runs)
    for (std::uint64_t at = 0; at < run.bytes; at += kPart)
      parts.push_back({run.from + at, run.to + at, std::min(kPart, run.bytes - at)});
  parallel_for(parts.size() + copies.strided.size(), threads, [&](std::size_t i, int) {
    if (i < parts.size())
      stream_copy(buffer_.data() + parts[i].to, parts[i].from, parts[i].bytes);
    else
      copy_strided(copies.strided[i - parts.size()]);
  });
}

void Snapshot::take_early(int threads) { copy(early_, threads); }

void Snapshot::take(int threads) { copy(copies_, threads); }

void Snapshot::release() {
  early_ = {};
  copies_ = {};
  owners_.clear();
}

}  // namespace tessera

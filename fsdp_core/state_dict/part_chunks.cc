#include "fsdp_core/state_dict/part_chunks.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/fsdp/communicator.h>
#include <tessera/layout/coverage.h>
#include <tessera/layout/layout.h>

#include <algorithm>
#include <cstring>
#include <span>

namespace tessera::fsdp {
namespace {

/// What every rank of the group says that it keeps, by rank.
std::vector<Box> told_boxes(Communicator& ranks, const std::string& fqn, const Box& own) {
  std::vector<std::int64_t> mine;
  for (const std::span<const std::int64_t> list :
       {std::span<const std::int64_t>(own.origin), own.shape.extents()}) {
    mine.push_back(static_cast<std::int64_t>(list.size()));
    mine.insert(mine.end(), list.begin(), list.end());
  }
  std::vector<Box> boxes;
  for (const auto& bytes :
       ranks.all_gather_bytes(std::as_bytes(std::span(mine)), {fqn, CommPhase::kSummon})) {
    std::vector<std::int64_t> theirs(bytes.size() / sizeof(std::int64_t));
    std::memcpy(theirs.data(), bytes.data(), theirs.size() * sizeof(std::int64_t));
    auto at = theirs.begin();
    const auto list = [&] {
      const auto begin = at + 1;
      at = begin + *at;
      return std::vector<std::int64_t>(begin, at);
    };
    std::vector<std::int64_t> origin = list();
    boxes.push_back({std::move(origin), Shape(list())});
  }
  return boxes;
}

void check_tiles(const char* hook, const std::string& fqn, const Shape& shape,
                 const std::vector<Box>& boxes) {
  std::vector<Chunk> chunks;
  std::int64_t held = 0;
  for (std::size_t r = 0; r < boxes.size(); ++r) {
    Chunk chunk{boxes[r], 0, 0};
    if (!ChunkView(chunk).has_box_in(shape))
      fail(Code::kInvalidArgument,
           fmt::format("{} of \"{}\", rank {} of {}: {} does not lie in {}", hook, fqn, r,
                       boxes.size(), boxes[r].to_string(), shape.to_string()));
    chunk.flat_end = chunk.box.numel();
    held += chunk.numel();
    chunks.push_back(std::move(chunk));
  }
  const CoverageReport report = check_coverage(shape, chunks);
  if (report.complete && held == shape.numel()) return;
  fail(Code::kInvalidArgument,
       fmt::format("{} of \"{}\" {} over {} ranks: {}", hook, fqn, shape.to_string(), boxes.size(),
                   report.complete ? "ranks hold the same elements" : report.to_string()),
       "every element belongs to one rank, and all ranks cut alike");
}

}  // namespace

Placement placement_of(const ModelTensor& tensor, const PartOf& part) {
  const std::int64_t dims = part.stored.tensor.dim();
  if (dims == 0) return Placement::replicate();
  const Placement placement =
      extension_of(tensor).chunk_as_dtensor(part.stored, tensor.unit->options().mesh->mesh());
  if (placement == Placement::replicate()) return placement;
  if (placement != Placement::shard(placement.dim) || placement.dim < 0 || placement.dim >= dims)
    fail(Code::kInvalidArgument,
         fmt::format("chunk_as_dtensor() of \"{}\" with {} dims: expected a shard of one of them "
                     "or replicate, found {}",
                     part.fqn, dims, placement.to_string()));
  return placement;
}

std::vector<Box> chunks_of(const ModelTensor& tensor, const PartOf& part) {
  Communicator& ranks = tensor.unit->shard_comm();
  if (ranks.size() == 1 || part.stored.tensor.dim() == 0) return {};
  const Shape shape(part.stored.tensor.sizes().vec());
  const Box whole = Box::whole(shape);
  const bool has_mesh = tensor.unit->options().mesh.has_value();
  Box own = whole;
  if (!has_mesh) {
    own = extension_of(tensor).chunk(part.stored, ranks.rank(), ranks.size());
  } else if (const Placement at = placement_of(tensor, part); at != Placement::replicate()) {
    own = chunk_box(shape, at.dim, ranks.size(), ranks.rank());
  }
  // Ranks that cut apart would load each other's elements.
  std::vector<Box> boxes = told_boxes(ranks, part.fqn, own);
  const bool on_all = std::ranges::all_of(boxes, [&](const Box& box) { return box == whole; });
  if (has_mesh && on_all) return {};
  check_tiles(has_mesh ? "chunk_as_dtensor()" : "chunk()", part.fqn, shape, boxes);
  return boxes;
}

}  // namespace tessera::fsdp

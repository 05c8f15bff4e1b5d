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

#include "fsdp_core/runtime/fail_together.h"

namespace tessera::fsdp {
namespace {

/// What every rank of the group says that it keeps of each part; by part, by rank.
std::vector<std::vector<Box>> boxes_of_all_ranks(Communicator& ranks, const std::string& unit,
                                                 const std::vector<Box>& own) {
  std::vector<std::int64_t> mine;
  for (const Box& box : own)
    for (const std::span<const std::int64_t> list :
         {std::span<const std::int64_t>(box.origin), box.shape.extents()}) {
      mine.push_back(static_cast<std::int64_t>(list.size()));
      mine.insert(mine.end(), list.begin(), list.end());
    }
  std::vector<std::vector<Box>> boxes(own.size());
  for (const auto& bytes :
       ranks.all_gather_bytes(std::as_bytes(std::span(mine)), {unit, CommPhase::kSummon})) {
    std::vector<std::int64_t> theirs(bytes.size() / sizeof(std::int64_t));
    std::memcpy(theirs.data(), bytes.data(), theirs.size() * sizeof(std::int64_t));
    auto at = theirs.begin();
    const auto list = [&] {
      const auto begin = at + 1;
      at = begin + *at;
      return std::vector<std::int64_t>(begin, at);
    };
    for (std::vector<Box>& of_part : boxes) {
      std::vector<std::int64_t> origin = list();
      of_part.push_back({std::move(origin), Shape(list())});
    }
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
       "every element must belong to one rank, and all ranks must cut alike");
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

namespace {

/// What this rank keeps of it.
Box own_chunk(const ModelTensor& tensor, const PartOf& part) {
  Communicator& ranks = *tensor.group->comms().shard;
  const Shape shape(part.stored.tensor.sizes().vec());
  if (shape.rank() == 0) return Box::whole(shape);
  if (!tensor.unit->options().mesh)
    return extension_of(tensor).chunk(part.stored, ranks.rank(), ranks.size());
  const Placement placement = placement_of(tensor, part);
  return placement == Placement::replicate()
             ? Box::whole(shape)
             : chunk_box(shape, placement.dim, ranks.size(), ranks.rank());
}

}  // namespace

std::vector<std::vector<Box>> chunks_of(const ModelTensor& tensor,
                                        const std::vector<PartOf>& parts) {
  Communicator& ranks = *tensor.group->comms().shard;
  if (ranks.size() == 1) return std::vector<std::vector<Box>>(parts.size());
  const bool has_mesh = tensor.unit->options().mesh.has_value();
  const std::vector<Communicator*> groups = communicators_of(tensor.unit->comms());
  const TogetherCall call{"state_dict", {tensor.unit->name(), CommPhase::kSummon}, ""};
  std::vector<Box> own;
  fail_together(groups, call, [&] {
    for (const PartOf& part : parts) own.push_back(own_chunk(tensor, part));
  });
  std::vector<std::vector<Box>> boxes = boxes_of_all_ranks(ranks, tensor.unit->name(), own);
  // Ranks that cut apart would load each other's elements.
  fail_together(groups, call, [&] {
    for (std::size_t p = 0; p < parts.size(); ++p) {
      const Shape shape(parts[p].stored.tensor.sizes().vec());
      const Box whole = Box::whole(shape);
      const bool on_all =
          std::ranges::all_of(boxes[p], [&](const Box& box) { return box == whole; });
      if (shape.rank() == 0 || (has_mesh && on_all))
        boxes[p].clear();
      else
        check_tiles(has_mesh ? "chunk_as_dtensor()" : "chunk()", parts[p].fqn, shape, boxes[p]);
    }
  });
  return boxes;
}

}  // namespace tessera::fsdp

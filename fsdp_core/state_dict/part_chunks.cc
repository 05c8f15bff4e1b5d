#include "fsdp_core/state_dict/part_chunks.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/layout/coverage.h>
#include <tessera/layout/layout.h>

namespace tessera::fsdp {
namespace {

void check_tiles(const StoredPart& part, const Shape& shape, const std::vector<Box>& boxes) {
  std::vector<Chunk> chunks;
  std::int64_t held = 0;
  for (std::size_t r = 0; r < boxes.size(); ++r) {
    Chunk chunk{boxes[r], 0, 0};
    chunk.flat_end = ChunkView(chunk).has_box_in(shape) ? chunk.box.numel() : 0;
    if (!ChunkView(chunk).lies_in(shape))
      fail(Code::kInvalidArgument,
           fmt::format("chunk() of \"{}\", rank {} of {}: {} does not lie in {}", part.name, r,
                       boxes.size(), boxes[r].to_string(), shape.to_string()));
    held += chunk.numel();
    chunks.push_back(std::move(chunk));
  }
  const CoverageReport report = check_coverage(shape, chunks);
  if (report.complete && held == shape.numel()) return;
  fail(Code::kInvalidArgument,
       fmt::format("chunk() of \"{}\" {} over {} ranks: {}", part.name, shape.to_string(),
                   boxes.size(),
                   report.complete ? "ranks hold the same elements" : report.to_string()),
       "every element belongs to one rank");
}

}  // namespace

Placement placement_of(const ModelTensor& tensor, const StoredPart& part) {
  const std::int64_t dims = part.tensor.dim();
  if (dims == 0) return Placement::replicate();
  const Placement placement =
      extension_of(tensor).chunk_as_dtensor(part, tensor.unit->options().mesh->mesh());
  if (placement == Placement::replicate()) return placement;
  if (placement != Placement::shard(placement.dim) || placement.dim < 0 || placement.dim >= dims)
    fail(Code::kInvalidArgument,
         fmt::format("chunk_as_dtensor() of \"{}\" with {} dims: expected a shard of one of them "
                     "or replicate, found {}",
                     part.name, dims, placement.to_string()));
  return placement;
}

std::vector<Box> chunks_of(const ModelTensor& tensor, const StoredPart& part) {
  const int count = tensor.unit->shard_comm().size();
  if (count == 1 || part.tensor.dim() == 0) return {};
  const Shape shape(part.tensor.sizes().vec());
  std::vector<Box> boxes;
  if (!tensor.unit->options().mesh) {
    for (int r = 0; r < count; ++r) boxes.push_back(extension_of(tensor).chunk(part, r, count));
    check_tiles(part, shape, boxes);
    return boxes;
  }
  const Placement placement = placement_of(tensor, part);
  if (placement == Placement::replicate()) return {};
  for (int r = 0; r < count; ++r) boxes.push_back(chunk_box(shape, placement.dim, count, r));
  return boxes;
}

at::Tensor cut(const at::Tensor& whole, const Box& box) {
  at::Tensor out = whole;
  for (int d = 0; d < box.rank(); ++d) out = out.narrow(d, box.begin(d), box.shape[d]);
  return out.clone(at::MemoryFormat::Contiguous);
}

}  // namespace tessera::fsdp

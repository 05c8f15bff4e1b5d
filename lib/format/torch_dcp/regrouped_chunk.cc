#include "lib/format/torch_dcp/regrouped_chunk.h"

#include <fmt/format.h>
#include <tessera/base/error.h>

#include <vector>

namespace tessera::dcp {
namespace {

[[noreturn]] void fail_shapes(const Shape& regrouped, const Shape& whole) {
  fail(Code::kCorrupt,
       fmt::format("stored as {} by flattened ranges, which is no regrouping of its shape {}",
                   regrouped.to_string(), whole.to_string()));
}

/// Extents of a cell: whole / number of cells, per dim.
std::vector<std::int64_t> cell_extents(const Shape& regrouped, const Shape& whole) {
  if (regrouped.rank() != whole.rank() + 1) fail_shapes(regrouped, whole);
  std::vector<std::int64_t> cell;
  for (int d = 0; d < whole.rank(); ++d) {
    if (regrouped[d] < 1 || whole[d] % regrouped[d] != 0) fail_shapes(regrouped, whole);
    cell.push_back(whole[d] / regrouped[d]);
  }
  if (Shape(cell).numel() != regrouped[whole.rank()]) fail_shapes(regrouped, whole);
  return cell;
}

}  // namespace

Chunk regrouped_chunk(const Shape& regrouped, const Shape& whole, const Box& stored) {
  const std::vector<std::int64_t> cell = cell_extents(regrouped, whole);
  if (!Box::whole(regrouped).contains(stored)) {
    fail(Code::kCorrupt, fmt::format("chunk {} leaves its tensor of shape {}", stored.to_string(),
                                     regrouped.to_string()));
  }
  Chunk chunk;
  for (int d = 0; d < whole.rank(); ++d) {
    if (stored.shape[d] != 1) {
      fail(Code::kUnsupported,
           fmt::format("chunk {} of flattened ranges spans several cells", stored.to_string()));
    }
    chunk.box.origin.push_back(stored.begin(d) * cell[static_cast<std::size_t>(d)]);
  }
  chunk.box.shape = Shape(cell);
  chunk.flat_begin = stored.begin(whole.rank());
  chunk.flat_end = stored.end(whole.rank());
  return chunk;
}

Shape item_shape(const Chunk& chunk, std::uint16_t view) {
  if (view == kFlatItem) return Shape{chunk.numel()};
  if (view != kRegrouped) return chunk.box.shape;
  std::vector<std::int64_t> extents(static_cast<std::size_t>(chunk.box.rank()), 1);
  extents.push_back(chunk.numel());
  return Shape(std::move(extents));
}

}  // namespace tessera::dcp

#pragma once
// Coverage proof: do these chunks hold every element of a tensor?
//
// Exact replicas (equal chunks) are allowed and counted; any other overlap is a defect. O(C log C)
// for row-sharded and grid layouts; never quadratic in the chunk count on valid input.
#include <tessera/tensor/packed_chunks.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tessera {

struct CoverageReport {
  bool complete = true;  // no hole, no overlap, all in bounds
  std::int64_t missing_numel = 0;
  std::optional<Box> first_hole;           // a box no chunk touches
  std::vector<std::size_t> out_of_bounds;  // chunk indices
  /// Chunks that overlap without being equal.
  std::optional<std::pair<std::size_t, std::size_t>> first_overlap;
  /// False: too tangled to finish in bounded work; not complete, and missing_numel is a lower
  /// bound.
  bool exact = true;
  std::int64_t replicas = 1;  // copies of the least-replicated element (0 with a hole)
  /// One line for a message: "region [4:8,0:6] is in no chunk (24 missing)"
  std::string to_string() const;
};

CoverageReport check_coverage(const Shape& shape, ChunkSlice chunks);
CoverageReport check_coverage(const Shape& shape, std::span<const Chunk> chunks);

}  // namespace tessera

#pragma once
// What Gather looks for, and where it goes: the parts that its files share.
#include <cstdint>
#include <vector>

#include "lib/reshard/gather.h"

namespace tessera {

/// The part of one source piece that one task needs: one run of the chunk, or, strided, a span of
/// the file.
struct Gather::Need {
  std::uint32_t task = 0;
  std::uint64_t chunk = 0;  // in Manifest::chunks
  const Source* source = nullptr;
  const std::vector<std::int64_t>* strides = nullptr;
  Region common;          // of the piece and the task's region
  std::int64_t base = 0;  // of a coded view: elements of the item before the chunk's first
  std::int64_t first_element =
      0;                     // of the chunk's ravel (strided: steps from the chunk's first element)
  std::uint64_t offset = 0;  // bytes in the file (kExtent)
  std::uint64_t length = 0;  // bytes
};

struct Gather::Op {
  const TargetSpan* target = nullptr;
  std::uint32_t number = 0;
  Region common;
  bool run = false;  // one run on both sides
};

/// A need that goes over unchanged as one run into one target, or is only proved.
struct Gather::CachedRun {
  const TargetSpan* target = nullptr;  // null: proved
  std::uint32_t number = 0;
  std::uint64_t begin = 0;  // bytes from the target's start
};

/// Is `inner` one run of the dense array `outer`?
inline bool is_run(RegionView outer, RegionView inner) {
  std::size_t d = 0;
  while (d < outer.size() && inner[d].size() == 1) ++d;
  for (++d; d < outer.size(); ++d) {
    if (inner[d].size() != outer[d].size()) return false;
  }
  return true;
}

/// Elements, in steps of `strides`, from the first of `outer` to the first of `inner`.
inline std::int64_t dot_begin(RegionView outer, RegionView inner,
                              const std::vector<std::int64_t>& strides) {
  std::int64_t at = 0;
  for (std::size_t d = 0; d < outer.size(); ++d) {
    at += (inner[d].begin - outer[d].begin) * strides[d];
  }
  return at;
}

}  // namespace tessera

#pragma once
// Shares: the output of one plan dealt out to processes, by destination. Each process writes one
// run of the output's bytes (files in order, segments in order), as many as every other or nearly
// so:
//
//   output   |--- file 0 ---|------- file 1 -------|-- file 2 --|
//   shares   |----- 0 -----|----- 1 -----|----- 2 -----|-- 3 ---|
//            |----- 0 ------|---- 1 ----|---- 2 ----|----- 3 ---|   borders moved, see below
//
// A border goes to the end of a file that is near, so that most files have one writer; else inside
// a tensor's segment at a whole I/O block, the segment becoming two; else between two segments.
// Depends on the output plan and the number of processes alone. Pure data.
#include <tessera/reshard/plan.h>

#include <cstdint>
#include <vector>

namespace tessera {

struct Shares {
  OutputPlan output;  // the same bytes, cut at the borders. Its renderer borrows the original
  /// Share i: segments [borders[i], borders[i + 1]) of `output`.
  std::vector<std::uint64_t> borders;
  /// By file: the shares that hold its first and its last tensor bytes. The last one finishes it.
  struct Writers {
    std::uint32_t first = 0;
    std::uint32_t last = 0;
    bool shared() const { return first != last; }
  };
  std::vector<Writers> writers;
};

/// `output` must outlive the result.
Shares make_shares(const Manifest& source, const OutputPlan& output, int parts);

}  // namespace tessera

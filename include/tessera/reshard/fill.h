#pragma once
// Fill: a Plan whose destination is live memory: the same gather as a transfer to files, each piece
// of a stored chunk copied once, straight to its place (a strided one by way of a block).
//
//   targets -> memory_plan(): an OutputPlan of one nameless file, segment i = target i
//   Plan(source, that) proves coverage; fill() reads only what the targets need
//
// Staged bytes of all threads together stay below the memory limit. An error leaves the targets
// partly filled; a caller that cannot accept that passes staging memory as targets.
#include <tessera/reshard/executor.h>
#include <tessera/reshard/plan.h>
#include <tessera/reshard/tensor_reader.h>

#include <cstdint>
#include <span>
#include <vector>

namespace tessera {

/// A place in memory for part of a tensor.
struct MemoryTarget {
  std::uint32_t tensor = 0;  // index in Manifest::tensors
  Chunk chunk;
  std::byte* data = nullptr;
  std::vector<std::int64_t> strides;  // elements per dim of chunk.box, > 0; empty: dense
};

OutputPlan memory_plan(const Manifest& source, std::span<const MemoryTarget> targets);

/// `output` and `plan` were made for these targets. Of the result: bytes read, bytes written (to
/// the targets), proved bytes, what is unproved, peak and casts.
TransferResult fill(const Manifest& source, const Directory& directory, const OutputPlan& output,
                    const Plan& plan, std::span<const MemoryTarget> targets,
                    const TransferOptions& options);

/// Reads what fill() would read and proves the same checksums, but keeps nothing:
/// `result.bytes_read`, `proved_bytes` and `unproved`. What passes, fill() can read.
TransferResult prove_fill(const Manifest& source, const Directory& directory,
                          const OutputPlan& output, const Plan& plan,
                          const TransferOptions& options);

}  // namespace tessera

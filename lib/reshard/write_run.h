#pragma once
// WriteRun: neighbouring parts of one output file that one unit writes together: pieces of tensor
// segments, the literals before them, and what lies between them.
#include <tessera/state/output_plan.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace tessera {

struct RunPart {
  std::uint64_t segment = 0;
  std::uint64_t offset = 0;  // in the file
  std::uint64_t length = 0;
  std::uint32_t task = 0;  // tensor parts: which task and target fill it
  std::uint32_t target = 0;
  bool is_tensor = false;
};

struct WriteRun {
  std::uint32_t file = 0;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::vector<RunPart> parts;  // ascending, without gaps
  std::byte* data = nullptr;   // of `begin`; congruent to it modulo the I/O alignment
};

struct FileRange {
  std::uint32_t file = 0;
  RunPart part;
};

/// Sorts and joins. `most_bytes`: a run ends before it grows past this.
std::vector<WriteRun> join_runs(const OutputPlan& plan, std::vector<FileRange> pieces,
                                std::uint64_t most_bytes);

/// Bytes a buffer needs to hold all runs, each at its alignment; and their places in it.
std::uint64_t runs_buffer_bytes(const std::vector<WriteRun>& runs);
void place_runs(std::vector<WriteRun>& runs, std::byte* buffer);

/// The file a segment belongs to.
std::uint32_t file_of_segment(const OutputPlan& plan, std::uint64_t segment);

}  // namespace tessera

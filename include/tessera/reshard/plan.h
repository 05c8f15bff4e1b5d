#pragma once
// Plan: which stored chunks fill which output segments. Pure data that can be printed, made before
// any byte moves.
//
// Proved when it is made: every tensor segment's chunk lies inside its tensor, and the chosen
// chunks of that tensor hold each of its elements exactly once. So every destination element has
// exactly one source, and, as segments tile their files (OutputPlan::check), is written exactly
// once. O(C log C) in chunks plus segments.
#include <tessera/state/manifest.h>
#include <tessera/state/output_plan.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tessera {

/// One piece: elements of `box` (global coordinates) go from one stored chunk to one segment.
struct CopyOp {
  std::uint32_t tensor = 0;        // index in Manifest::tensors
  std::uint64_t source_chunk = 0;  // index in Manifest::chunks
  std::uint64_t segment = 0;       // index in OutputPlan::segments
  Box box;
  std::string to_string(const Manifest& source, const OutputPlan& output) const;
};

class Plan {
 public:
  /// Throws kCorrupt for a hole or overlap in the source, naming the tensor; kInternal for segments
  /// outside their tensor.
  Plan(const Manifest& source, const OutputPlan& output);

  /// What fills segments [first, last) alone, from the chunks that this plan chose.
  Plan part(std::uint64_t first, std::uint64_t last) const;

  /// Every chunk that is read, by index in Manifest::chunks.
  std::vector<std::uint64_t> chosen_chunks() const;

  /// The tensors that have segments, in order of their first one.
  std::size_t tensor_count() const { return tensors_.size(); }
  std::uint32_t tensor(std::size_t i) const { return tensors_[i].tensor; }
  /// Chunks to read, relative to the tensor's first; ascending. Where the segments are only a part
  /// of the tensor (one rank's files, one rank's memory): those that they need.
  std::span<const std::uint32_t> sources(std::size_t i) const;
  /// Segments to fill, ascending; each non-empty.
  std::span<const std::uint64_t> segments(std::size_t i) const;

  /// Every piece of one tensor, by segment; each box is as large as both sides allow.
  std::vector<CopyOp> ops(std::size_t i) const;

  std::uint64_t source_bytes() const { return source_bytes_; }  // of chosen chunks, once each
  std::uint64_t tensor_bytes() const { return tensor_bytes_; }  // of tensor segments
  std::size_t memory_bytes() const;

 private:
  struct Entry {
    std::uint32_t tensor;
    std::uint32_t source_count;
    std::uint64_t first_source;
    std::uint64_t first_segment;
    std::uint64_t segment_count;
  };
  Plan() = default;
  const Manifest* source_ = nullptr;
  const OutputPlan* output_ = nullptr;
  std::vector<Entry> tensors_;
  std::vector<std::uint32_t> sources_;
  std::vector<std::uint64_t> segments_;
  std::uint64_t source_bytes_ = 0;
  std::uint64_t tensor_bytes_ = 0;
};

}  // namespace tessera

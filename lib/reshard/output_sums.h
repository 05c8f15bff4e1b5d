#pragma once
// OutputSums: CRC-32 of every tensor segment and of every MiB of every output file, folded from
// what each thread wrote, in any order. Thread-safe.
#include <tessera/state/output_plan.h>
#include <tessera/storage/checksum.h>

#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace tessera {

/// CRC of [offset, offset + length) of a file; never crosses a MiB border.
struct FilePart {
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  std::uint32_t crc = 0;
};

class OutputSums {
 public:
  explicit OutputSums(const OutputPlan& plan);

  /// Parts that follow each other without gaps.
  void add_run(std::uint32_t file, const std::vector<FilePart>& parts);
  /// `offset` in the segment.
  void add_segment_part(std::uint64_t segment, std::uint64_t offset, std::uint64_t length,
                        std::uint32_t crc);

  /// Throws kInternal for a segment that is not wholly written.
  std::uint32_t segment_crc(std::uint64_t segment) const;
  /// One number per MiB of a file; every byte must have been added.
  std::vector<std::uint32_t> file_crcs(std::uint32_t file) const;
  /// What was added so far of a file: parts of it, ascending, none crossing a MiB border.
  std::vector<FilePart> file_parts(std::uint32_t file) const;
  bool has_segment(std::uint64_t segment) const;

 private:
  void add_block(std::uint32_t file, std::uint64_t block, std::uint64_t offset,
                 std::uint64_t length, std::uint32_t crc);
  const OutputPlan& plan_;
  mutable std::mutex mutex_;
  std::vector<std::uint32_t> segment_crcs_;
  std::vector<bool> segment_done_;
  std::map<std::uint64_t, CrcFold> open_segments_;
  std::vector<std::vector<std::uint32_t>> block_crcs_;  // by file; empty until it is written
  std::vector<std::vector<bool>> block_done_;
  std::map<std::pair<std::uint32_t, std::uint64_t>, CrcFold> open_blocks_;
};

/// Calls visit(offset, length) for the parts of [offset, offset + length) cut at MiB borders.
template <class Visit>
void cut_at_mib(std::uint64_t offset, std::uint64_t length, Visit&& visit) {
  for (std::uint64_t end = offset + length; offset < end;) {
    std::uint64_t part = std::min(end - offset, kMiB - offset % kMiB);
    visit(offset, part);
    offset += part;
  }
}

}  // namespace tessera

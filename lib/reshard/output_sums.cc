#include "lib/reshard/output_sums.h"

#include <tessera/base/error.h>

#include <algorithm>

namespace tessera {

OutputSums::OutputSums(const OutputPlan& plan)
    : plan_(plan),
      segment_crcs_(plan.segments.size()),
      segment_done_(plan.segments.size()),
      block_crcs_(plan.files.size()),
      block_done_(plan.files.size()) {}

void OutputSums::add_run(std::uint32_t file, const std::vector<FilePart>& parts) {
  std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < parts.size();) {
    std::uint64_t block = parts[i].offset / kMiB;
    FilePart sum = parts[i++];
    for (; i < parts.size() && parts[i].offset / kMiB == block; ++i) {
      TESSERA_CHECK(parts[i].offset == sum.offset + sum.length);
      sum.crc = crc32_combine(sum.crc, parts[i].crc, parts[i].length);
      sum.length += parts[i].length;
    }
    add_block(file, block, sum.offset - block * kMiB, sum.length, sum.crc);
  }
}

void OutputSums::add_block(std::uint32_t file, std::uint64_t block, std::uint64_t offset,
                           std::uint64_t length, std::uint32_t crc) {
  std::uint64_t size = std::min(kMiB, plan_.files[file].size_bytes - block * kMiB);
  if (block_crcs_[file].empty()) {
    const std::uint64_t blocks = (plan_.files[file].size_bytes + kMiB - 1) / kMiB;
    block_crcs_[file].resize(static_cast<std::size_t>(blocks));
    block_done_[file].resize(static_cast<std::size_t>(blocks));
  }
  TESSERA_CHECK(!block_done_[file][block]);
  if (length != size) {
    auto [slot, fresh] = open_blocks_.try_emplace({file, block}, size);
    slot->second.add(offset, length, crc);
    if (!slot->second.complete()) return;
    crc = slot->second.value();
    open_blocks_.erase(slot);
  }
  block_crcs_[file][block] = crc;
  block_done_[file][block] = true;
}

void OutputSums::add_segment_part(std::uint64_t segment, std::uint64_t offset, std::uint64_t length,
                                  std::uint32_t crc) {
  std::lock_guard lock(mutex_);
  TESSERA_CHECK(!segment_done_[segment]);
  if (length != plan_.segments[segment].length) {
    auto [slot, fresh] = open_segments_.try_emplace(segment, plan_.segments[segment].length);
    slot->second.add(offset, length, crc);
    if (!slot->second.complete()) return;
    crc = slot->second.value();
    open_segments_.erase(slot);
  }
  segment_crcs_[segment] = crc;
  segment_done_[segment] = true;
}

std::uint32_t OutputSums::segment_crc(std::uint64_t segment) const {
  std::lock_guard lock(mutex_);
  TESSERA_CHECK(segment_done_[segment] || plan_.segments[segment].length == 0);
  return segment_crcs_[segment];
}

bool OutputSums::has_segment(std::uint64_t segment) const {
  std::lock_guard lock(mutex_);
  return segment_done_[segment];
}

std::vector<std::uint32_t> OutputSums::file_crcs(std::uint32_t file) const {
  std::lock_guard lock(mutex_);
  const std::vector<bool>& done = block_done_[file];
  TESSERA_CHECK(done.size() == (plan_.files[file].size_bytes + kMiB - 1) / kMiB);
  TESSERA_CHECK(std::find(done.begin(), done.end(), false) == done.end());
  return block_crcs_[file];
}

std::vector<FilePart> OutputSums::file_parts(std::uint32_t file) const {
  std::lock_guard lock(mutex_);
  std::vector<FilePart> parts;
  for (std::uint64_t block = 0; block < block_done_[file].size(); ++block) {
    if (!block_done_[file][block]) continue;
    const std::uint64_t size = std::min(kMiB, plan_.files[file].size_bytes - block * kMiB);
    parts.push_back({block * kMiB, size, block_crcs_[file][block]});
  }
  for (auto open = open_blocks_.lower_bound({file, 0});
       open != open_blocks_.end() && open->first.first == file; ++open) {
    for (const CrcRun& run : open->second.runs())
      parts.push_back({open->first.second * kMiB + run.offset, run.length, run.crc});
  }
  return parts;
}

}  // namespace tessera

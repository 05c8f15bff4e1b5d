#include "lib/live/load_targets.h"

#include <fmt/format.h>
#include <tessera/base/error.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "lib/live/untouched.h"

namespace tessera {

namespace {

constexpr std::uint64_t kAsideAlignment = 64;

std::uint64_t aligned(std::uint64_t bytes) {
  return (bytes + kAsideAlignment - 1) / kAsideAlignment * kAsideAlignment;
}

}  // namespace

void LoadTargets::add(MemoryTarget target, std::string_view name) {
  targets_.push_back(std::move(target));
  names_.push_back(name);
}

void LoadTargets::plan(const Manifest& manifest) {
  manifest_ = &manifest;
  if (targets_.empty()) return;
  output_ = memory_plan(manifest, targets_);
  output_.check(manifest);
  plan_.emplace(manifest, output_);
}

std::vector<std::uint64_t> LoadTargets::chunks() const {
  return plan_ ? plan_->chosen_chunks() : std::vector<std::uint64_t>();
}

void LoadTargets::take_room() {
  std::uint64_t total = 0;
  for (const Segment& segment : output_.segments) total += aligned(segment.length);
  room_.reserve(total);
  aside_ = targets_;
  std::byte* to = room_.data();
  for (std::size_t t = 0; t < aside_.size(); ++t) {
    aside_[t].data = to;
    aside_[t].strides.clear();
    to += aligned(output_.segments[t].length);
  }
}

std::uint64_t LoadTargets::read(const LoadSource& source, bool canaries) {
  if (!plan_) return 0;
  const std::span<const MemoryTarget> into = aside_.empty() ? targets_ : aside_;
  if (canaries) fill_canary(source.manifest, into, kFirstCanary);
  const TransferResult moved =
      fill(source.manifest, source.directory, output_, *plan_, into, source.options);
  keep_unproved(moved.unproved);
  return moved.bytes_read + (canaries ? prove_touched(source, into) : 0);
}

std::uint64_t LoadTargets::prove(const LoadSource& source) {
  if (!plan_) return 0;
  TransferOptions quiet = source.options;
  quiet.progress = nullptr;
  const TransferResult proved =
      prove_fill(source.manifest, source.directory, output_, *plan_, quiet);
  keep_unproved(proved.unproved);
  return proved.bytes_read;
}

void LoadTargets::keep_unproved(const std::vector<UnprovedRecord>& records) {
  unproved_.clear();
  std::map<std::uint64_t, std::uint32_t> tensors;  // by their first chunk
  if (!records.empty())
    for (const MemoryTarget& target : targets_)
      tensors[manifest_->tensors[target.tensor].first_chunk] = target.tensor;
  for (const UnprovedRecord& each : records) {
    const Record& record = manifest_->records[each.record];
    const std::uint32_t tensor = std::prev(tensors.upper_bound(each.chunk))->second;
    unproved_.push_back({record.file, record.offset, record.length, tensor, each.chunk, each.runs});
  }
}

std::vector<RecordToProve> LoadTargets::take_unproved() { return std::exchange(unproved_, {}); }

void LoadTargets::land(bool proved) {
  for (std::size_t t = 0; t < aside_.size(); ++t) {
    copy_to_target(*manifest_, aside_[t].data, targets_[t]);
    if (proved && !holds(*manifest_, targets_[t], aside_[t].data))
      in_tensor(names_[t], [&] {
        fail(Code::kInternal,
             fmt::format("{} does not hold what was read for it", targets_[t].chunk.to_string()));
      });
  }
  aside_.clear();
  room_ = AlignedBuffer();
}

/// Elements that still look like the first canary are read again over another one: what bears the
/// second then was never written.
std::uint64_t LoadTargets::prove_touched(const LoadSource& source,
                                         std::span<const MemoryTarget> filled) const {
  std::vector<MemoryTarget> doubtful;
  std::vector<std::vector<std::int64_t>> before;
  std::vector<std::string_view> names;
  for (std::size_t t = 0; t < filled.size(); ++t) {
    std::vector<std::int64_t> found = canaries(source.manifest, filled[t], kFirstCanary);
    if (found.empty()) continue;
    doubtful.push_back(filled[t]);
    before.push_back(std::move(found));
    names.push_back(names_[t]);
  }
  if (doubtful.empty()) return 0;
  fill_canary(source.manifest, doubtful, kSecondCanary);
  const OutputPlan output = memory_plan(source.manifest, doubtful);
  const Plan plan(source.manifest, output);
  TransferOptions quiet = source.options;
  quiet.progress = nullptr;
  const TransferResult moved =
      fill(source.manifest, source.directory, output, plan, doubtful, quiet);
  for (std::size_t d = 0; d < doubtful.size(); ++d) {
    const auto after = canaries(source.manifest, doubtful[d], kSecondCanary);
    std::vector<std::int64_t> both;
    std::ranges::set_intersection(before[d], after, std::back_inserter(both));
    if (both.empty()) continue;
    in_tensor(names[d], [&] {
      fail(Code::kInternal,
           fmt::format("{} elements of {} were not written by the load, the first is number {}",
                       both.size(), doubtful[d].chunk.to_string(), both[0]));
    });
  }
  return moved.bytes_read;
}

}  // namespace tessera

#include "lib/layout/flat_places.h"

#include <algorithm>

namespace tessera {

FlatPlaces::FlatPlaces(std::vector<FlatRun> runs) : runs_(std::move(runs)) {
  std::ranges::stable_sort(runs_, {}, &FlatRun::begin);
  for (const FlatRun& run : runs_)
    reach_.push_back(std::max(run.end, reach_.empty() ? run.end : reach_.back()));
}

std::vector<FlatRun> FlatPlaces::cut(std::int64_t begin, std::int64_t end) const {
  std::vector<FlatRun> out;
  // No run before this one reaches beyond `begin`.
  auto at = static_cast<std::size_t>(std::ranges::upper_bound(reach_, begin) - reach_.begin());
  if (begin == end && !runs_.empty()) {
    const FlatRun& run = runs_[std::min(at, runs_.size() - 1)];
    const std::int64_t offset = std::clamp(begin, run.begin, run.end) - run.begin + run.offset;
    return {{run.rank, run.buffer, 0, 0, offset}};
  }
  for (; at < runs_.size() && runs_[at].begin < end; ++at) {
    const FlatRun& run = runs_[at];
    const std::int64_t from = std::max(begin, run.begin), to = std::min(end, run.end);
    if (from < to)
      out.push_back(
          {run.rank, run.buffer, from - begin, to - begin, from - run.begin + run.offset});
  }
  return out;
}

std::vector<FlatRange> padding_of(std::vector<FlatRange> content, std::int64_t numel) {
  std::ranges::sort(content, {}, &FlatRange::begin);
  std::vector<FlatRange> out;
  std::int64_t at = 0;
  for (const FlatRange& range : content) {
    if (at < std::min(range.begin, numel)) out.push_back({at, std::min(range.begin, numel)});
    at = std::max(at, range.end);
  }
  if (at < numel) out.push_back({at, numel});
  return out;
}

}  // namespace tessera

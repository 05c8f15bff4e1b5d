#include "lib/reshard/item_turn.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <queue>

namespace tessera {

namespace {

/// One item in the order of the tensor's elements.
struct Run {
  std::int64_t first = 0;
  std::int64_t last = 0;
  std::uint64_t bytes = 0;
};

/// The most bytes of items that lie across one block of `step` elements.
std::uint64_t most_at_once(std::vector<Run> runs, std::int64_t step) {
  std::ranges::sort(runs, {}, &Run::first);
  const auto ends_later = [](const Run& a, const Run& b) { return a.last > b.last; };
  std::priority_queue<Run, std::vector<Run>, decltype(ends_later)> open(ends_later);
  std::uint64_t now = 0, most = 0;
  for (const Run& run : runs) {
    for (; !open.empty() && open.top().last < run.first - step; open.pop()) now -= open.top().bytes;
    open.push(run);
    now += run.bytes;
    most = std::max(most, now);
  }
  return most;
}

}  // namespace

void ItemWindow::add(const Manifest& manifest, std::uint32_t tensor, const Geometry& geometry,
                     std::int64_t step) {
  if (!geometry.has_coded) return;
  const StoredTensor& stored = manifest.tensors[tensor];
  const std::vector<std::int64_t> strides = dense_strides(geometry.whole());
  std::map<std::pair<std::uint32_t, std::uint64_t>, Run> runs;
  std::uint64_t largest = 0;
  for (std::size_t i = 0; i < geometry.sources.size(); ++i) {
    const std::uint64_t chunk = geometry.source_chunks[geometry.sources.owner(i)].chunk;
    const Source& source = manifest.chunks.source(chunk);
    if (source.kind != Source::Kind::kCoded) continue;
    std::int64_t first = 0, last = 0;
    const RegionView region = geometry.sources.region(i);
    for (std::size_t d = 0; d < region.size(); ++d) {
      first += region[d].begin * strides[d];
      last += (region[d].end - 1) * strides[d];
    }
    const CodedSize size = coded_size(manifest, stored, chunk);
    const auto [at, is_new] =
        runs.try_emplace({source.file, source.offset}, Run{first, last, size.decoded});
    Run& run = at->second;
    if (!is_new)
      run = {std::min(run.first, first), std::max(run.last, last),
             std::max(run.bytes, size.decoded)};
    largest = std::max(largest, size.at_once());
  }
  std::vector<Run> all;
  for (const auto& [key, run] : runs) {
    all.push_back(run);
    const auto [at, is_new] = items.try_emplace(key, Place{tensor, run.last});
    if (!is_new) at->second.last_element = std::numeric_limits<std::int64_t>::max();  // of several
  }
  bytes += most_at_once(std::move(all), step) + largest;
}

ItemTurn::ItemTurn(CodedGate& turns, Worker& worker, ItemWindow window, const CancelToken* cancel)
    : turns_(turns),
      worker_(worker),
      window_(std::move(window)),
      taken_(std::min(window_.bytes, turns.total_bytes())) {
  if (taken_ > 0) turns_.take(taken_, cancel);
  worker_.most_decoded_bytes = taken_;
}

ItemTurn::~ItemTurn() {
  worker_.drop_decoded();
  turns_.give(taken_);
}

void ItemTurn::reach(std::uint32_t tensor, std::int64_t element) {
  for (auto at = worker_.decoded.begin(); at != worker_.decoded.end();) {
    const auto item = window_.items.find(at->first);
    const bool is_behind = item != window_.items.end() && item->second.tensor == tensor &&
                           item->second.last_element < element;
    const auto next = std::next(at);
    if (is_behind) worker_.drop_decoded(at);
    at = next;
  }
}

}  // namespace tessera

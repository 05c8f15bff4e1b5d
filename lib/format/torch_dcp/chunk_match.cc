#include "lib/format/torch_dcp/chunk_match.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/tensor/shape.h>

#include <algorithm>
#include <numeric>

#include "lib/format/torch_dcp/names.h"

namespace tessera::dcp {
namespace {

using Numbers = std::span<const std::int64_t>;

bool less(Numbers a, Numbers b) { return std::ranges::lexicographical_compare(a, b); }
bool equal(Numbers a, Numbers b) { return std::ranges::equal(a, b); }
bool is_empty(Numbers sizes) { return std::ranges::find(sizes, 0) != sizes.end(); }
std::string text(Numbers numbers) { return Shape(numbers).to_string(); }

/// Chunk positions sorted by (origin, sizes, position).
std::vector<std::uint32_t> sorted_chunks(const DcpMetadata& metadata, const DcpEntry& entry) {
  std::vector<std::uint32_t> order(entry.chunk_count);
  std::iota(order.begin(), order.end(), 0u);
  const auto comes_first = [&](std::uint32_t a, std::uint32_t b) {
    const Numbers oa = metadata.origin(entry, a);
    const Numbers ob = metadata.origin(entry, b);
    if (!equal(oa, ob)) return less(oa, ob);
    const Numbers sa = metadata.sizes(entry, a);
    const Numbers sb = metadata.sizes(entry, b);
    return equal(sa, sb) ? a < b : less(sa, sb);
  };
  if (!std::is_sorted(order.begin(), order.end(), comes_first))
    std::sort(order.begin(), order.end(), comes_first);
  return order;
}

/// Drops repeated chunks, and empty ones where a full one has the same origin (releases before 2.8
/// gave both one key, so that one of the two was written).
std::vector<std::uint32_t> distinct_chunks(const DcpMetadata& metadata, const DcpEntry& entry) {
  std::vector<std::uint32_t> kept;
  for (const std::uint32_t chunk : sorted_chunks(metadata, entry)) {
    if (!kept.empty() &&
        equal(metadata.origin(entry, kept.back()), metadata.origin(entry, chunk))) {
      const Numbers before = metadata.sizes(entry, kept.back());
      if (equal(before, metadata.sizes(entry, chunk))) continue;
      if (is_empty(metadata.sizes(entry, chunk))) continue;
      if (is_empty(before)) kept.pop_back();
    }
    kept.push_back(chunk);
  }
  return kept;
}

/// Items with an origin of the tensor's rank, sorted by (origin, writer).
std::vector<std::uint32_t> sorted_items(const DcpMetadata& metadata, const DcpEntry& entry,
                                        std::span<const std::uint32_t> items, Findings& findings) {
  std::vector<std::uint32_t> order;
  for (const std::uint32_t i : items) {
    const DcpStorage& item = metadata.storage[i];
    if (item.has_origin && item.rank == static_cast<std::uint32_t>(entry.spec.shape.rank())) {
      order.push_back(i);
    } else {
      findings.note(Finding::kUnusedEntry, Severity::kWarning,
                    "an item of storage_data has no offset of the tensor's rank",
                    metadata.files[item.file], entry.name);
    }
  }
  const auto comes_first = [&](std::uint32_t a, std::uint32_t b) {
    const Numbers oa = metadata.origin(metadata.storage[a]);
    const Numbers ob = metadata.origin(metadata.storage[b]);
    if (!equal(oa, ob)) return less(oa, ob);
    return metadata.storage[a].writer < metadata.storage[b].writer;
  };
  if (!std::is_sorted(order.begin(), order.end(), comes_first))
    std::stable_sort(order.begin(), order.end(), comes_first);
  return order;
}

}  // namespace

ItemsByEntry group_items(const DcpMetadata& metadata) {
  ItemsByEntry made;
  made.first.assign(metadata.entries.size() + 1, 0);
  for (const DcpStorage& item : metadata.storage) {
    if (item.entry != DcpStorage::kNoEntry) ++made.first[item.entry + 1];
  }
  std::partial_sum(made.first.begin(), made.first.end(), made.first.begin());
  made.items.resize(made.first.back());
  std::vector<std::uint32_t> next(made.first.begin(), made.first.end() - 1);
  for (std::uint32_t i = 0; i < metadata.storage.size(); ++i) {
    const std::uint32_t entry = metadata.storage[i].entry;
    if (entry != DcpStorage::kNoEntry) made.items[next[entry]++] = i;
  }
  return made;
}

std::vector<MatchedChunk> match_chunks(const DcpMetadata& metadata, const DcpEntry& entry,
                                       std::span<const std::uint32_t> items, Findings& findings) {
  const std::vector<std::uint32_t> chunks = distinct_chunks(metadata, entry);
  const std::vector<std::uint32_t> order = sorted_items(metadata, entry, items, findings);
  std::vector<MatchedChunk> matched;
  matched.reserve(chunks.size());
  std::size_t next = 0;
  const auto origin_of = [&](std::size_t i) { return metadata.origin(metadata.storage[order[i]]); };
  const auto skip_unused = [&] {
    const DcpStorage& item = metadata.storage[order[next++]];
    findings.note(Finding::kUnusedEntry, Severity::kWarning,
                  fmt::format("an item of storage_data at offset {} belongs to no chunk",
                              text(metadata.origin(item))),
                  metadata.files[item.file], entry.name);
  };
  for (const std::uint32_t chunk : chunks) {
    const Numbers origin = metadata.origin(entry, chunk);
    while (next < order.size() && less(origin_of(next), origin)) skip_unused();
    if (next < order.size() && equal(origin_of(next), origin)) {
      matched.push_back({chunk, order[next++]});
      // Replicas of other ranks' own metadata; the lowest rank's came first.
      while (next < order.size() && equal(origin_of(next), origin)) {
        if (metadata.storage[order[next]].writer == metadata.storage[order[next - 1]].writer) {
          in_tensor(entry.name, [&] {
            fail(Code::kCorrupt,
                 fmt::format("storage_data names the chunk at {} twice", text(origin)));
          });
        }
        matched.push_back({chunk, order[next++]});
      }
    } else {
      matched.push_back({chunk, MatchedChunk::kNoItem});
      findings.error(Finding::kUnplaced,
                     fmt::format("the chunk at {} has no entry in storage_data", text(origin)), {},
                     entry.name);
    }
  }
  while (next < order.size()) skip_unused();
  const auto in_list_order = [](const MatchedChunk& a, const MatchedChunk& b) {
    return a.chunk < b.chunk;
  };
  if (!std::is_sorted(matched.begin(), matched.end(), in_list_order))
    std::stable_sort(matched.begin(), matched.end(), in_list_order);
  return matched;
}

}  // namespace tessera::dcp

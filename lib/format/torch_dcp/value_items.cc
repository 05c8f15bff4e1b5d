#include "lib/format/torch_dcp/value_items.h"

#include <tessera/base/error.h>
#include <tessera/base/parallel.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <tuple>

#include "lib/format/torch_dcp/names.h"

namespace tessera::dcp {
namespace {

constexpr std::size_t kBatchValues = 128;

/// Decodes items[order[begin..end)). Damage is thrown, or kept for `damage` when tolerated.
void decode_batch(ItemReader& reader, const Manifest& manifest, const std::vector<ValueItem>& items,
                  std::span<const std::uint32_t> order, std::span<const std::uint64_t> ends,
                  const ReadOptions& options, std::vector<DecodedItem>& out,
                  std::vector<std::optional<Status>>& damage) {
  for (std::size_t k = 0; k < order.size(); ++k) {
    const ValueItem& value = items[order[k]];
    try {
      in_file(manifest.files[value.item.file].path, [&] {
        in_tensor(value.name, [&] {
          const OpenItem open = reader.open(value.item, ends[k]);
          out[order[k]].decoded = decode_value(manifest, value.item, open, options);
        });
      });
    } catch (const Error& error) {
      if (!tolerates(options, error.code())) throw;
      out[order[k]].damaged = true;
      damage[order[k]] = error.status();
    }
  }
}

}  // namespace

std::vector<DecodedItem> decode_values(const Directory& directory, const Manifest& manifest,
                                       const std::vector<ValueItem>& items,
                                       const ReadOptions& options, Findings& findings) {
  std::vector<std::uint32_t> order(items.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return std::tie(items[a].item.file, items[a].item.offset) <
           std::tie(items[b].item.file, items[b].item.offset);
  });
  std::vector<Item> sorted;
  sorted.reserve(items.size());
  for (const std::uint32_t i : order) sorted.push_back(items[i].item);
  const std::vector<std::uint64_t> ends = run_ends(sorted);

  std::vector<DecodedItem> out(items.size());
  std::vector<std::optional<Status>> damage(items.size());
  const std::size_t batches = (items.size() + kBatchValues - 1) / kBatchValues;
  parallel_for(batches, options.threads, [&](std::size_t batch, int) {
    const std::size_t begin = batch * kBatchValues;
    const std::size_t count = std::min(kBatchValues, items.size() - begin);
    ItemReader reader(directory, manifest, options);
    decode_batch(reader, manifest, items, std::span(order).subspan(begin, count),
                 std::span(ends).subspan(begin, count), options, out, damage);
  });
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (!damage[i]) continue;
    findings.error(item_finding(*damage[i]), damage[i]->message,
                   manifest.files[items[i].item.file].path, items[i].name);
  }
  return out;
}

}  // namespace tessera::dcp

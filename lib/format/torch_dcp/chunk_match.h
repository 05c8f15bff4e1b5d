#pragma once
// Joins state_dict_metadata with storage_data: which item holds which chunk. O(n log n).
#include <cstdint>
#include <vector>

#include "lib/format/findings.h"
#include "lib/format/torch_dcp/metadata.h"

namespace tessera::dcp {

/// Items of every entry, packed: those of entry e are items[first[e] .. first[e + 1]), by writer,
/// then in storage_data's order.
struct ItemsByEntry {
  std::vector<std::uint32_t> first;
  std::vector<std::uint32_t> items;  // indices in DcpMetadata::storage
};
ItemsByEntry group_items(const DcpMetadata& metadata);

/// A chunk to keep and the item with its data (kNoItem: it has none).
struct MatchedChunk {
  static constexpr std::uint32_t kNoItem = 0xffffffffu;
  std::uint32_t chunk = 0;  // position in the entry's list
  std::uint32_t item = kNoItem;
};

/// The chunks of one tensor in their order, without repeated ones. Chunks without an item are
/// CK015, items without a chunk CK016. Throws kCorrupt when one writer names a chunk twice.
std::vector<MatchedChunk> match_chunks(const DcpMetadata& metadata, const DcpEntry& entry,
                                       std::span<const std::uint32_t> items, Findings& findings);

}  // namespace tessera::dcp

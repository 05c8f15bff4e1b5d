#pragma once
// DcpMetadata: the object graph of `.metadata` as plain data, one model for every release.
//
//   entries      state_dict_metadata in its order: tensors with chunks, and values ("bytes" items)
//   storage      storage_data: which item of which file holds (name, offset)
//   coordinates  one pool of integers that chunks and storage entries point into
//
// A value type; parse() reads no file. Everything in it is untrusted but well formed: ranks of
// chunks agree with their tensor, no number is negative, no origin + size overflows. Bounds,
// coverage and files are checked by whoever builds the Manifest.
#include <tessera/base/bytes.h>
#include <tessera/state/manifest.h>

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace tessera::dcp {

struct DcpEntry {
  std::string name;
  Path path;
  bool is_tensor = false;
  bool requires_grad = false;
  TensorSpec spec;
  std::uint64_t first_coordinate = 0;  // chunk i: origin, then sizes, at first + 2 * rank * i
  std::uint32_t chunk_count = 0;
};

struct DcpStorage {
  static constexpr std::uint32_t kNoEntry = 0xffffffffu;
  std::uint32_t entry = kNoEntry;  // index in entries; kNoEntry: a name they lack
  std::uint32_t file = 0;          // index in files
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  std::uint64_t first_coordinate = 0;  // the chunk's origin
  std::uint32_t rank = 0;              // numbers in the origin
  std::uint32_t codecs = 0;            // 1 + index in codecs; 0 = stored plain
  std::uint32_t writer = 0;            // rank-local metadata: position of the file it came from
  bool has_origin = false;             // false for values
};

struct DcpMetadata {
  std::vector<DcpEntry> entries;
  std::vector<DcpStorage> storage;
  std::vector<std::int64_t> coordinates;
  std::vector<std::string> files;                // relative_path, in order of first appearance
  std::vector<std::vector<std::string>> codecs;  // transform_descriptors, as stored
  std::vector<std::string> orphans;              // names in storage_data that entries lack
  std::vector<Note> notes;
  std::vector<GlobalUse> globals;
  std::map<std::string, std::string> provenance;
  std::string dialect;
  bool has_planner_data = false;
  /// Entries that Megatron-core stored regrouped (see regrouped_chunk.h): their true shapes.
  std::map<std::uint32_t, Shape> regrouped;
  /// Plans in Megatron-core's `all_local_plans`: one per writing rank; 0 = none stored.
  std::int64_t plan_count = 0;

  std::span<const std::int64_t> origin(const DcpEntry& entry, std::size_t chunk) const;
  std::span<const std::int64_t> sizes(const DcpEntry& entry, std::size_t chunk) const;
  std::span<const std::int64_t> origin(const DcpStorage& item) const;
};

/// `file`: for messages. Throws kCorrupt for anything that is no DCP metadata, denied globals among
/// it; kUnsupported for an element type without a name here and for the request-based form of 1.12.
DcpMetadata parse_metadata(ByteView bytes, std::string_view file, bool collect_denied = false);

/// One checkpoint from the metadata of several ranks (ascending), which describe their own items
/// only. Equal chunks are kept once, the lowest rank's; all values' items are kept.
DcpMetadata merge_rank_local(std::vector<DcpMetadata> ranks);

}  // namespace tessera::dcp

#pragma once
// From an open item to a Source: where the elements of one stored chunk lie.
//
//   plain item              kExtent into the data file, with strides, conj / neg / byte order, and
//                           the CRC of the storage record
//   encoded item, dense     kCoded: the item's codecs, then "slice:O:N" of the storage inside
//   encoded item, strided   kInline: made dense here, within the memory limit
#include <tessera/encoding/torch_archive.h>
#include <tessera/state/manifest.h>

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "lib/format/torch_dcp/item_reader.h"

namespace tessera::dcp {

/// A Source whose side tables have not been joined to a Manifest yet.
struct LocatedChunk {
  Source source;                      // side and record are set by join()
  std::vector<std::int64_t> strides;  // empty: dense
  std::optional<Record> record;
  std::optional<Bytes> inline_bytes;
  std::vector<std::string> codecs;  // kCoded
  std::optional<QuantParams> quant;
};

// `pickle_limit_bytes`: as ReadOptions has it.
/// Opens the torch archive in `open`, which must hold one bare tensor.
/// Throws kCorrupt, kUnsupported (sparse, per-channel quantized).
LocatedChunk locate_archive_item(const Manifest& manifest, const Item& item, const OpenItem& open,
                                 const TensorSpec& expected, std::uint64_t pickle_limit_bytes);

/// Elements [first, first + count) of the 1-D tensor in `open`. Throws kCorrupt where it is none,
/// of another type, or shorter.
LocatedChunk locate_flat_part(const Manifest& manifest, const Item& item, const OpenItem& open,
                              DType dtype, std::int64_t first, std::int64_t count,
                              std::uint64_t pickle_limit_bytes);

/// One tensor of an archive whose storages have been located.
LocatedChunk locate_tensor(const Manifest& manifest, const Item& item, const OpenItem& open,
                           const TorchArchive& archive, const ArchiveTensor& tensor);

/// Moves located chunks into a manifest's side tables, sharing equal codec chains. Not thread-safe.
class SideTables {
 public:
  explicit SideTables(Manifest& manifest) : manifest_(manifest) {}
  /// For tensors and their parts, which come in file order: parts of one record follow each other.
  Source join(LocatedChunk located);
  /// For tensors inside a value: they come in the value's order, and some share a record.
  Source join_embedded(LocatedChunk located);
  std::uint64_t inline_bytes() const { return inline_bytes_; }

 private:
  Manifest& manifest_;
  std::map<std::vector<std::string>, std::uint32_t> chains_;
  std::map<std::vector<std::int64_t>, std::uint32_t> strides_;
  using RecordPlace = std::tuple<std::uint32_t, std::uint64_t, std::uint64_t>;
  std::map<RecordPlace, std::uint32_t> embedded_;  // Source::record by file, offset and length
  std::uint64_t inline_bytes_ = 0;
};

}  // namespace tessera::dcp

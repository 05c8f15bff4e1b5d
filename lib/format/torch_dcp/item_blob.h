#pragma once
// serialization_format=SAFETENSORS (2.8 and newer): all tensors of one data file stand in one
// safetensors blob after its values. `.metadata` gives each of them the blob's first byte as
// offset, and its own numel * itemsize as length; the blob's header says where the bytes are, by
// name.
#include <tessera/encoding/safetensors_header.h>

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>

#include "lib/format/torch_dcp/item_tensor.h"

namespace tessera::dcp {

/// The blob that was used last; items of one file follow each other.
class BlobCache {
 public:
  /// True when a safetensors header starts at the item's offset.
  bool is_blob(ItemReader& reader, const Item& item);

  /// Where the chunk of `name` lies. Throws kCorrupt when the blob lacks it or holds another chunk
  /// of the same tensor (the writer keeps one chunk of a name per file and drops the others).
  LocatedChunk locate(ItemReader& reader, const Item& item, const std::string& name,
                      std::span<const std::int64_t> origin, const TensorSpec& expected);

 private:
  struct Entry {
    TensorSpec spec;
    std::uint64_t offset = 0;  // in the file
    std::vector<std::int64_t> origin;
    bool has_origin = false;
  };
  void load(ItemReader& reader, const Item& item);

  std::uint32_t file_ = 0;
  std::uint64_t offset_ = 0;
  bool loaded_ = false;
  std::map<std::string, Entry, std::less<>> entries_;
};

}  // namespace tessera::dcp

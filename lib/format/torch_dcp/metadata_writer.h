#pragma once
// Renders `.metadata`: schema of PyTorch 2.4 to 2.9 (storage_meta None) with the version string
// of 2.10, pickled with protocol 2, which every release from 2.0 on reads.
#include <tessera/base/bytes.h>
#include <tessera/state/value.h>
#include <tessera/tensor/packed_chunks.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace tessera::dcp {

/// One key of state_dict_metadata.
struct WrittenEntry {
  std::string name;
  Path path;
  bool is_tensor = false;
  TensorSpec spec;
};

/// One item and the chunk it holds; none for a value.
struct WrittenItem {
  std::uint32_t entry = 0;
  std::int64_t rank = 0;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  std::optional<ChunkView> chunk;
};

/// All items in file order, asked for one by one: there may be millions.
struct WrittenItems {
  std::size_t count = 0;
  std::function<std::uint32_t(std::size_t i)> entry_of;
  std::function<WrittenItem(std::size_t i)> at;
};

/// Chunks of one entry are listed in the order of their items. Pure.
Bytes render_metadata(const std::vector<WrittenEntry>& entries, const WrittenItems& items);
/// How long that is.
std::uint64_t count_metadata(const std::vector<WrittenEntry>& entries, const WrittenItems& items);

}  // namespace tessera::dcp
